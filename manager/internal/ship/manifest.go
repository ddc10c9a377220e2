package ship

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/object"
)

const (
	manifestVersion = 1
	manifestObject  = "manifest"
)

// manifest names the objects of a log. It is replaced only if it did not change,
// and every object is written before the manifest names it.
type manifest struct {
	Version int `json:"version"`
	// Term is that of the writer's lease, Edit counts the writes, and Writer is random for each
	// process. By these three a manager recognises its own write.
	Term   uint64 `json:"term"`
	Edit   uint64 `json:"edit"`
	Writer string `json:"writer"`
	// Ledger is the id of the ledger whose copies the destination has.
	Ledger string `json:"ledger,omitempty"`
	// LongestTTL is how long the manager remembers a key at most, in milliseconds.
	LongestTTL int64 `json:"longest_ttl_ms"`
	// LongestWindow is how long a named log remembers an id at most, in milliseconds; 0 when there are no logs.
	LongestWindow int64 `json:"longest_window_ms,omitempty"`
	// EpochFloor is the highest of the managers that shipped, see Options.
	EpochFloor uint64 `json:"epoch_floor,omitempty"`
	// Histories, oldest first. Each is of one log without a fork.
	Histories []history `json:"histories"`
}

// history begins with a snapshot, or with the first record of a log. Runs may have
// gaps; each is bridged by a snapshot.
type history struct {
	Log string `json:"log"`
	// Began and Ended in Unix milliseconds; Ended is 0 for the last one.
	Began int64 `json:"began"`
	Ended int64 `json:"ended,omitempty"`
	// Reach is the last record that was durable when it began after another history. Until it has all
	// up to there, a restore uses the other one.
	Reach     uint64     `json:"reach,omitempty"`
	Snapshots []snapshot `json:"snapshots,omitempty"`
	Runs      []run      `json:"runs,omitempty"`
	// Tail is where newer runs are found that the manifest does not name yet.
	Tail *tail `json:"tail,omitempty"`
}

// ref names an object and its content. Sum is that of its records, see header.
type ref struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	Sum   string `json:"sum"`
}

type snapshot struct {
	Sequence uint64 `json:"seq"`
	// Time in Unix milliseconds, by which the snapshot was durable.
	Time int64 `json:"t"`
	// Segment is the one that held the next record.
	Segment segment `json:"segment"`
	Records uint64  `json:"records"`
	Bytes   int64   `json:"bytes"`
	Parts   []ref   `json:"parts"`
}

// run holds the records First to Last, all of one segment.
type run struct {
	ref
	First   uint64  `json:"first"`
	Last    uint64  `json:"last"`
	Segment segment `json:"segment"`
	From    int64   `json:"from"` // time of its first point
	To      int64   `json:"to"`   // and of its last
}

// tail has the names of the runs that follow the history's last one: the term, and an index that counts from Next without a
// gap. The term's head has how many there are at least.
type tail struct {
	Term uint64 `json:"term"`
	Next uint64 `json:"next"`
	// From is the sequence number with which the first of them begins.
	From uint64 `json:"from"`
}

// caughtUp reports whether it has all that was durable when it began.
func (h *history) caughtUp() bool { return h.end() >= h.Reach }

// usable reports whether a state can be restored from it.
func (h *history) usable() bool { return planOf(h, 1<<63-1) != nil }

// end is the last sequence number that the manifest's runs and snapshots reach.
func (h *history) end() uint64 {
	var end uint64
	if n := len(h.Snapshots); n > 0 {
		end = h.Snapshots[n-1].Sequence
	}
	if n := len(h.Runs); n > 0 {
		end = max(end, h.Runs[n-1].Last)
	}
	return end
}

// nextRun is the sequence number with which the next run of the tail begins.
func (h *history) nextRun() uint64 {
	if n := len(h.Runs); n > 0 {
		return max(h.Tail.From, h.Runs[n-1].Last+1)
	}
	return h.Tail.From
}

// broken reports whether records are missing between the newest snapshot, or the first record, and the tail.
func (h *history) broken() bool {
	next := uint64(1)
	if n := len(h.Snapshots); n > 0 {
		next = h.Snapshots[n-1].Sequence + 1
	}
	for _, r := range h.Runs {
		if r.First > next {
			return true
		}
		next = max(next, r.Last+1)
	}
	return h.Tail.From > next
}

// empty reports whether nothing can be restored from it.
func (h *history) empty() bool { return len(h.Runs) == 0 && len(h.Snapshots) == 0 }

func (m *manifest) last() *history {
	if len(m.Histories) == 0 {
		return nil
	}
	return &m.Histories[len(m.Histories)-1]
}

// sameAs reports whether both were written by the same write.
func (m *manifest) sameAs(o *manifest) bool {
	return m.Term == o.Term && m.Writer == o.Writer && m.Edit == o.Edit
}

// clone is deep enough for edits of histories.
func (m *manifest) clone() *manifest {
	c := *m
	c.Histories = append([]history(nil), m.Histories...)
	for i := range c.Histories {
		h := &c.Histories[i]
		h.Snapshots = append([]snapshot(nil), h.Snapshots...)
		h.Runs = append([]run(nil), h.Runs...)
		if h.Tail != nil {
			t := *h.Tail
			h.Tail = &t
		}
	}
	return &c
}

// DamageError names an object that is missing or has the wrong content.
type DamageError struct {
	Object string
	Reason string

	cause error // errMissing, errForeign or nil
}

func (e *DamageError) Unwrap() error { return e.cause }

// isDamage reports a *DamageError, or several, joined.
func isDamage(err error) bool {
	var damage *DamageError
	return errors.As(err, &damage)
}

func (e *DamageError) Error() string { return fmt.Sprintf("object %s: %s", e.Object, e.Reason) }

// readManifest returns object.ErrNotFound when there is none.
func readManifest(ctx context.Context, s object.Store) (*manifest, object.Version, error) {
	name := logPrefix + "/" + manifestObject
	b, v, err := s.Get(ctx, name)
	if err != nil {
		return nil, "", err
	}
	m, err := decodeSummed[manifest](b)
	if err != nil {
		return nil, "", &DamageError{Object: name, Reason: err.Error()}
	}
	if m.Version != manifestVersion {
		return nil, "", fmt.Errorf("ship: %s has format version %d, this program knows %d", name, m.Version, manifestVersion)
	}
	return &m, v, nil
}

// encodeSummed makes a line with the SHA-256 of the JSON of a manifest or head, and the JSON.
func encodeSummed(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // neither has anything that could fail
	}
	return fmt.Appendf(nil, "%x\n%s\n", sha256.Sum256(b), b)
}

func decodeSummed[T manifest | head](b []byte) (v T, err error) {
	sum, text, _ := bytes.Cut(b, []byte("\n"))
	text = bytes.TrimSuffix(text, []byte("\n"))
	if want := fmt.Sprintf("%x", sha256.Sum256(text)); string(sum) != want {
		return v, fmt.Errorf("its SHA-256 is %.64q, computed %s", sum, want)
	}
	return v, json.Unmarshal(text, &v)
}

// errFenced says that another manager holds a newer term.
var errFenced = errors.New("ship: fenced by a newer term")

// writeManifest replaces the manifest of version v, or creates it when v is empty. It
// returns errFenced when another manager wrote it. It succeeds if it finds its own write, whose
// answer was lost.
func writeManifest(ctx context.Context, s object.Store, m *manifest, v object.Version) (object.Version, error) {
	return swap(ctx, s, logPrefix+"/"+manifestObject, encodeSummed(m), v, func(now []byte) verdict {
		found, err := decodeSummed[manifest](now)
		switch {
		case err != nil || found.Writer != m.Writer || found.Term != m.Term || found.Edit > m.Edit:
			return foreign
		case found.Edit == m.Edit:
			return own
		}
		return unchanged
	})
}

// verdict says which write left an object.
type verdict int

const (
	foreign   verdict = iota // that of another manager
	own                      // this write
	unchanged                // the one that this write replaces
)

// swap writes an object if it still has version v, or does not
// exist when v is empty. When the store answers that it changed, look judges the content that is there:
// it may be from this write, whose answer was lost. The error is errFenced when it is foreign.
func swap(ctx context.Context, s object.Store, name string, body []byte, v object.Version, look func(now []byte) verdict) (object.Version, error) {
	for range 3 {
		var next object.Version
		var err error
		if v == "" {
			next, err = s.Create(ctx, name, body)
		} else {
			next, err = s.Replace(ctx, name, body, v)
		}
		if !errors.Is(err, object.ErrExists) && !errors.Is(err, object.ErrChanged) {
			return next, err
		}
		now, found, err := s.Get(ctx, name)
		if errors.Is(err, object.ErrNotFound) {
			if v == "" {
				continue // the refusal was wrong
			}
			return "", fmt.Errorf("%w: %s is gone", errFenced, name)
		}
		if err != nil {
			return "", err
		}
		switch look(now) {
		case own:
			return found, nil
		case foreign:
			return "", fmt.Errorf("%w: %s was written by another manager", errFenced, name)
		}
		v = found // the refusal was wrong
	}
	return "", fmt.Errorf("ship: writes of %s fail, though the object did not change", name)
}

// put writes an object whose name is used for this content only. The error is errFenced when it has other content: another
// manager used the term.
func put(ctx context.Context, s object.Store, name string, body []byte) error {
	_, err := s.Create(ctx, name, body)
	if !errors.Is(err, object.ErrExists) {
		return err
	}
	now, _, err := s.Get(ctx, name) // an earlier try, whose answer was lost
	if err != nil {
		return err
	}
	if string(now) != string(body) {
		return fmt.Errorf("%w: %s exists with other content", errFenced, name)
	}
	return nil
}
