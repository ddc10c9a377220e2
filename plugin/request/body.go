package request

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"hash"

	"github.com/oncegate/oncegate/plugin/config"
)

// Body digests a request together with its body, piece by piece and up to a limit. It is
// not safe for concurrent use.
type Body struct {
	sha       hash.Hash // of the body
	derived   hash.Hash // of the body alone; nil unless keys are derived from it
	declared  int64     // length of the body, -1 if it is not declared; used if the body exceeds the limit
	limit     int
	n         int64
	kind      printKind
	parts     *parts   // for printParts
	canonical bool     // sha is of the canonical form
	head      [32]byte // see Digester.head
}

// maxSpares is how many Bodies a Digester keeps for later requests. Without them, most of a
// request's garbage in the VM would be its Body.
const maxSpares = 16

// NewBody starts the digest of a request with these headers, and of at most limit bytes
// of its body. f says what counts. derive names the additional digest that a derived key needs. h is not
// kept.
func (d *Digester) NewBody(f *config.Fingerprint, h Headers, limit int, derive config.Derive) *Body {
	var b *Body
	if n := len(d.spares); n > 0 {
		b, d.spares = d.spares[n-1], d.spares[:n-1]
		*b = Body{sha: b.sha}
		b.sha.Reset()
	} else {
		b = &Body{sha: sha256.New()}
	}
	b.limit = max(limit, 0)
	switch derive {
	case config.DeriveMD5:
		b.derived = md5.New()
	case config.DeriveSHA256:
		b.derived = sha256.New()
	}
	d.head(f, h)
	b.head, b.declared, b.kind = d.sum, declaredLength(h, false), kindOf(f, h)
	d.buf = append(append(d.buf, b.head[16:]...), 'b')
	b.sha.Write(d.buf)
	d.buf = d.buf[:0]
	if b.kind == printParts {
		contentType, _ := h.Get(headerContentType)
		b.parts = newParts(b.sha, boundaryOf(contentType), b.limit)
	}
	return b
}

// Recycle takes back a Body for reuse. The caller must not use it any more. nil does nothing.
func (d *Digester) Recycle(b *Body) {
	if b != nil && len(d.spares) < maxSpares {
		d.spares = append(d.spares, b)
	}
}

// Write adds the next piece. Bytes beyond the limit are counted, but not digested.
func (b *Body) Write(p []byte) {
	room := int64(b.limit) - b.n
	b.n += int64(len(p))
	if room <= 0 {
		return
	}
	if int64(len(p)) > room {
		p = p[:room]
	}
	switch {
	case b.parts != nil:
		b.parts.Write(p)
	case b.kind != printNone:
		b.sha.Write(p)
	}
	if b.derived != nil {
		b.derived.Write(p)
	}
}

// NeedsWhole reports whether Canonical needs the whole body.
func (b *Body) NeedsWhole() bool { return b.kind == printJSON || b.kind == printForm }

// Len returns the number of bytes written so far.
func (b *Body) Len() int64 { return b.n }

// Truncated reports whether more than the limit was written.
func (b *Body) Truncated() bool { return b.n > int64(b.limit) }

// hexDigest returns the derived key's digest in hex; "": NewBody was asked for none.
func (b *Body) hexDigest() string {
	if b.derived == nil {
		return ""
	}
	return hex.EncodeToString(b.derived.Sum(nil))
}
