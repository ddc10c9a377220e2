package gate

import (
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/request"
)

// With a scope_secret there are two kinds of fingerprints: plain ones, and those that are keyed with the secret. New
// reservations get the kind that keyed_fingerprints says. An entry may have the other kind, from a gate with another
// setting or of an earlier release. So before a gate with a secret says that a key came with another request, it
// compares the other kind, too. A manager only compares texts, so it is asked a second time.

// kinds is what a stream knows about its fingerprints.
type kinds struct {
	plain request.Fingerprint
	// turned: the last reserve was a repetition in the other kind.
	turned bool
}

// compareBy sets the request's fingerprint.
func (s *Stream) compareBy(plain request.Fingerprint) {
	s.kinds.plain, s.fingerprint = plain, plain
	if s.plugin.config.KeyedFingerprints {
		s.fingerprint = s.plugin.digester.Keyed(&plain)
	}
}

// otherKind returns the request's fingerprint of the kind that the attempt does not have. False: there is one kind only.
func (s *Stream) otherKind() (f request.Fingerprint, ok bool) {
	switch {
	case s.plugin.config.ScopeSecret == "":
		return f, false
	case s.fingerprint != s.kinds.plain:
		return s.kinds.plain, true
	}
	return s.plugin.digester.Keyed(&s.kinds.plain), true
}

// matches tells whether an entry may be of this request.
func (s *Stream) matches(e *cache.Entry) bool {
	if e.Matches(s.fingerprint.Short()) {
		return true
	}
	other, ok := s.otherKind()
	return ok && e.Matches(other.Short())
}

// askInOtherKind repeats a reserve with the fingerprint of the other kind if the ledger has another fingerprint. All
// further calls of the attempt then have that kind.
func (s *Stream) askInOtherKind(c *call, r *reply, now int64) bool {
	if r.kind != replyMismatch || s.kinds.turned {
		s.kinds.turned = false
		return false
	}
	other, ok := s.otherKind()
	if !ok {
		return false
	}
	s.fingerprint, s.kinds.turned = other, true
	wait := int64(0)
	if c.wait > 0 {
		wait = max(s.deadline(now)-now, 0)
	}
	s.askFor(wait)
	return true
}
