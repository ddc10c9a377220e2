package request

import (
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"hash"

	"github.com/oncegate/oncegate/plugin/config"
)

// Body digests a request body piece by piece, up to a limit. Not safe for
// concurrent use.
type Body struct {
	sha, md hash.Hash // md only where MD5 keys are derived
	limit   int
	n       int64
}

// NewBody starts a digest of at most limit bytes. derive names the digest that a
// derived key needs in addition.
func NewBody(limit int, derive config.Derive) *Body {
	b := &Body{limit: max(limit, 0), sha: sha256.New()}
	if derive == config.DeriveMD5 {
		b.md = md5.New()
	}
	return b
}

// Write adds the next piece; what is beyond the limit is counted, not digested.
func (b *Body) Write(p []byte) {
	room := int64(b.limit) - b.n
	b.n += int64(len(p))
	if room <= 0 {
		return
	}
	if int64(len(p)) > room {
		p = p[:room]
	}
	b.sha.Write(p)
	if b.md != nil {
		b.md.Write(p)
	}
}

// Len returns the number of bytes written so far.
func (b *Body) Len() int64 { return b.n }

// Full tells whether the limit is reached: further pieces change only Len, so a
// caller may stop buffering.
func (b *Body) Full() bool { return b.n >= int64(b.limit) }

// Truncated tells whether more than the limit was written.
func (b *Body) Truncated() bool { return b.n > int64(b.limit) }

// hexDigest returns the derived key's digest, "" when it was not computed.
func (b *Body) hexDigest(derive config.Derive) string {
	switch {
	case derive == config.DeriveSHA256:
		return hex.EncodeToString(b.sha.Sum(nil))
	case derive == config.DeriveMD5 && b.md != nil:
		return hex.EncodeToString(b.md.Sum(nil))
	}
	return ""
}
