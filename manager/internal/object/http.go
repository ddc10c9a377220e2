package object

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	maxErrorText = 1 << 10
	// maxAnswer is more than a listing of MaxList long names.
	maxAnswer = 8 << 20
)

// newClient follows no redirects, so each answer is from the store itself.
func newClient() *http.Client {
	return &http.Client{
		Transport:     transport(),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// transport bounds what a request may wait for besides its body; the caller's
// context bounds the whole.
func transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 16
	t.ResponseHeaderTimeout = time.Minute
	t.DisableCompression = true // an object's bytes are returned as they are stored
	return t
}

// httpError is an answer other than 2xx.
type httpError struct {
	status  int
	code    string // the store's error code, or empty
	message string
}

func (e *httpError) Error() string {
	text := fmt.Sprintf("%d %s", e.status, http.StatusText(e.status))
	for _, more := range []string{e.code, e.message} {
		if more != "" {
			text += ": " + more
		}
	}
	return text
}

// errorText is the beginning of the body of an answer with an error.
func errorText(resp *http.Response) string {
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
	return string(b)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// answer reads the body of an answer that is not an object.
func answer(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
}

// readBody reads size bytes and no more, or up to MaxBytes when the size is not
// known.
func readBody(r io.Reader, size int64) ([]byte, error) {
	if size < 0 {
		b, err := io.ReadAll(io.LimitReader(r, MaxBytes+1))
		if err == nil && len(b) > MaxBytes {
			err = ErrTooLarge
		}
		return b, err
	}
	b := make([]byte, size)
	_, err := io.ReadFull(r, b)
	return b, err
}
