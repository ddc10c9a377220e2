package gate

import (
	"github.com/oncegate/oncegate/plugin/cache"
	"github.com/oncegate/oncegate/plugin/config"
	"github.com/oncegate/oncegate/plugin/request"
)

// attempt names one attempt at a key, in the ledger and in the cache. Calls have a copy.
type attempt struct {
	route       *config.Route
	hash        cache.Hash
	key         string
	scope       request.Scope
	fingerprint request.Fingerprint
	token       cache.Token
	// trace are headers of the request that go along with calls.
	trace [][2]string
	// owner: the cache holds the pending entry of this attempt.
	owner bool
}

// reservation is an attempt's hold on its key. It belongs to whatever waits for upstream's
// answer, which need not be a stream.
type reservation struct {
	attempt
	// expires is when the reservation ends.
	expires int64
}

// newCall returns a call about the reservation's entry.
func (r *reservation) newCall(kind callKind) *call { return &call{kind: kind, attempt: r.attempt} }
