package peers

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// wireChange is a change in JSON.
type wireChange struct {
	Origin      string     `json:"origin"`
	Sequence    uint64     `json:"sequence"`
	Key         string     `json:"key"`
	Scope       string     `json:"scope"`
	State       string     `json:"state"`
	Token       string     `json:"token"`
	Fence       uint64     `json:"fence"`
	HLC         string     `json:"hlc"` // more than JSON's numbers hold everywhere
	Fingerprint string     `json:"fingerprint,omitempty"`
	JobID       string     `json:"job_id,omitempty"`
	AgeMS       int64      `json:"age_ms"`
	ExpiresInMS int64      `json:"expires_in_ms"`
	Result      api.Result `json:"result"`
}

type wireFeed struct {
	Changes []wireChange `json:"changes"`
	Cursor  string       `json:"cursor"`
	// Head is the newest sequence, Sequence the one before the cursor; Copying says that a full copy is under way.
	Head     uint64 `json:"head"`
	Sequence uint64 `json:"sequence"`
	Copying  bool   `json:"copying,omitempty"`
}

// AppendFeed appends a page of the change feed as JSON.
func AppendFeed(dst []byte, f *feed.Page) ([]byte, error) {
	w := wireFeed{Changes: make([]wireChange, len(f.Changes)), Cursor: f.Cursor, Head: f.Head, Sequence: f.Sequence, Copying: f.Copying}
	for i := range f.Changes {
		c := &f.Changes[i]
		w.Changes[i] = wireChange{
			Origin: c.Origin, Sequence: c.Sequence, Key: c.Key, Scope: c.Scope, State: c.State.String(), Token: c.Token, Fence: c.Fence, HLC: strconv.FormatUint(c.HLC, 10),
			Fingerprint: c.Fingerprint, JobID: c.Ref, AgeMS: c.Age.Milliseconds(), ExpiresInMS: c.ExpiresIn.Milliseconds(),
		}
		if err := w.Changes[i].Result.ParseRaw(c.Result); err != nil {
			return dst, err
		}
	}
	return schema.Append(dst, &w), nil
}

// parseFeed reads a page of a peer's feed. A change that the ledger refuses is counted there; one that is no JSON
// of a change fails the page.
func parseFeed(b []byte) (*feed.Page, error) {
	var w wireFeed
	if err := schema.Unmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("the answer is not a page of changes: %w", err)
	}
	if w.Changes == nil {
		return nil, errors.New("the answer has no changes")
	}
	f := &feed.Page{Cursor: w.Cursor, Head: w.Head, Sequence: w.Sequence, Copying: w.Copying, Changes: make([]ledger.FeedChange, len(w.Changes))}
	for i, c := range w.Changes {
		state, _ := api.ParseState(c.State)
		hlc, err := strconv.ParseUint(c.HLC, 10, 64)
		if err != nil || c.Result.Status == 0 {
			return nil, fmt.Errorf("change %d has no clock or no result", c.Sequence)
		}
		f.Changes[i] = ledger.FeedChange{
			Origin: c.Origin, Sequence: c.Sequence, Scope: c.Scope, Key: c.Key, Token: c.Token, Fingerprint: c.Fingerprint, Ref: c.JobID,
			State: state, HLC: hlc, Fence: c.Fence, Age: milliseconds(c.AgeMS), ExpiresIn: milliseconds(c.ExpiresInMS), Result: c.Result.AppendRaw(nil),
		}
	}
	return f, nil
}

// milliseconds keeps what a peer says within what a duration holds.
func milliseconds(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	return time.Duration(min(max(ms, 0), most)) * time.Millisecond
}

type wireDigest struct {
	FromMS   int64  `json:"from_ms"`
	Outcomes int    `json:"outcomes"`
	Digest   string `json:"digest"`
}

type wireDigests struct {
	Origin  string       `json:"origin"`
	SpanMS  int64        `json:"span_ms"`
	Digests []wireDigest `json:"digests"`
}

// AppendDigests appends digests as JSON.
func AppendDigests(dst []byte, origin string, span int64, digests []feed.Digest) []byte {
	w := wireDigests{Origin: origin, SpanMS: span, Digests: make([]wireDigest, len(digests))}
	for i, d := range digests {
		w.Digests[i] = wireDigest{d.From, d.Outcomes, strconv.FormatUint(d.Sum, 16)}
	}
	return schema.Append(dst, &w)
}

func parseDigests(b []byte) (span int64, digests []feed.Digest, err error) {
	var w wireDigests
	if err := schema.Unmarshal(b, &w); err != nil {
		return 0, nil, fmt.Errorf("the answer has no digests: %w", err)
	}
	for _, d := range w.Digests {
		sum, err := strconv.ParseUint(d.Digest, 16, 64)
		if err != nil {
			return 0, nil, fmt.Errorf("a digest is malformed: %w", err)
		}
		digests = append(digests, feed.Digest{From: d.FromMS, Outcomes: d.Outcomes, Sum: sum})
	}
	return w.SpanMS, digests, nil
}
