package object

import (
	"bytes"
	"errors"
	"io"
	"mime/multipart"
	"net/textproto"
	"sync"
)

// lentBody is the body of a request. The transport may still read it after the answer has arrived; end stops that.
type lentBody struct {
	size        int64
	contentType string

	mu sync.Mutex
	r  io.Reader // nil after end
}

var errEnded = errors.New("object: the request ended")

func (b *lentBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.r == nil {
		return 0, errEnded
	}
	return b.r.Read(p)
}

// end waits for a read that is under way. Later reads fail.
func (b *lentBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.r = nil
}

// lend makes a body of bytes, which are not copied.
func lend(body []byte) *lentBody {
	return &lentBody{size: int64(len(body)), contentType: "application/octet-stream", r: bytes.NewReader(body)}
}

// relatedParts is a body of type multipart/related: a JSON document, and bytes that are not copied.
func relatedParts(document, body []byte) (*lentBody, error) {
	var frame bytes.Buffer
	w := multipart.NewWriter(&frame)
	part, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {"application/json; charset=UTF-8"}})
	if err != nil {
		return nil, err
	}
	if _, err := part.Write(document); err != nil {
		return nil, err
	}
	if _, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {"application/octet-stream"}}); err != nil {
		return nil, err
	}
	before := frame.Len()
	if err := w.Close(); err != nil {
		return nil, err
	}
	head, tail := frame.Bytes()[:before], frame.Bytes()[before:]
	return &lentBody{
		size:        int64(frame.Len() + len(body)),
		contentType: "multipart/related; boundary=" + w.Boundary(),
		r:           io.MultiReader(bytes.NewReader(head), bytes.NewReader(body), bytes.NewReader(tail)),
	}, nil
}
