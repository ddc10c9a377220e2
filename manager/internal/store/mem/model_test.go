package mem

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal/faultfs"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// step is one call of a transaction. It adds what it got to the transcript.
type step func(tx store.Tx, got *[]string) error

// names with bytes that a position on disk has to escape.
var oddBytes = []string{"", "\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "\xff", "\xff\xff", "a", "a\x00", "a\x00b", "a\xff", "b"}

// randomText is one of a few texts, some of which begin with others.
func randomText(rnd *rand.Rand) string {
	return oddBytes[rnd.IntN(len(oddBytes))] + oddBytes[rnd.IntN(len(oddBytes))]
}

func randomKey(rnd *rand.Rand) string { return fmt.Sprint(rnd.IntN(4), randomText(rnd)) }

func randomIndex(rnd *rand.Rand) string { return fmt.Sprint("i", rnd.IntN(3)) }

func randomCollection(rnd *rand.Rand) store.Collection {
	return store.Collection(fmt.Sprint("c", rnd.IntN(rnd.IntN(3)+1)))
}

func randomRange(rnd *rand.Rand) store.Range {
	r := store.Range{Limit: []int{1, 2, 3, 7, store.MaxScan}[rnd.IntN(5)]}
	if rnd.IntN(2) == 0 {
		r.From = randomText(rnd)
	}
	if rnd.IntN(3) == 0 {
		r.To = randomText(rnd)
	}
	if rnd.IntN(3) == 0 {
		r.After = &store.Hit{SortKey: randomText(rnd)}
		if rnd.IntN(3) > 0 {
			r.After.Key = randomKey(rnd)
		}
	}
	return r
}

var errOfFunction = errors.New("the function refuses")

func randomStep(rnd *rand.Rand) step {
	c, key := randomCollection(rnd), randomKey(rnd)
	switch rnd.IntN(12) {
	case 0, 1, 2:
		return func(tx store.Tx, got *[]string) error {
			v, err := tx.Get(c, key)
			if errors.Is(err, store.ErrNotFound) {
				v, err = []byte(absent), nil
			}
			*got = append(*got, fmt.Sprintf("get %s %q: %q", c, key, v))
			return err
		}
	case 3, 4, 5:
		value := []byte(strings.Repeat("v", rnd.IntN(2)*rnd.IntN(300)) + fmt.Sprint(rnd.IntN(10)))
		if rnd.IntN(4) == 0 {
			value = nil
		}
		var entries []store.Entry
		for i := range 3 {
			if rnd.IntN(2) == 0 {
				entries = append(entries, store.Entry{Index: fmt.Sprint("i", i), SortKey: randomText(rnd)})
			}
		}
		rnd.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
		return func(tx store.Tx, _ *[]string) error { return tx.Put(c, key, value, entries...) }
	case 6, 7:
		return func(tx store.Tx, _ *[]string) error { return tx.Delete(c, key) }
	case 8, 9:
		index, r, read := randomIndex(rnd), randomRange(rnd), rnd.IntN(2) == 0
		return func(tx store.Tx, got *[]string) error {
			hits, err := tx.Scan(c, index, r)
			*got = append(*got, fmt.Sprintf("scan %s.%s: %q", c, index, hits))
			if err != nil || !read {
				return err
			}
			if n := len(hits); n > 0 && n == r.Limit { // the next page
				next := r
				next.After = &hits[n-1]
				more, err := tx.Scan(c, index, next)
				*got = append(*got, fmt.Sprintf("and then: %q", more))
				if err != nil {
					return err
				}
			}
			for _, h := range hits {
				v, err := tx.Get(c, h.Key)
				if err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
				*got = append(*got, fmt.Sprintf("hit %q: %q", h.Key, v))
			}
			return nil
		}
	case 10:
		return func(tx store.Tx, got *[]string) error {
			n, bytes, err := tx.Size(c)
			*got = append(*got, fmt.Sprintf("size %s: %d, %d", c, n, bytes))
			return err
		}
	default:
		ids := make([]store.ID, rnd.IntN(6))
		for i := range ids {
			ids[i] = store.ID{Collection: randomCollection(rnd), Key: randomKey(rnd)}
		}
		return func(tx store.Tx, _ *[]string) error { return tx.Prefetch(ids) }
	}
}

// randomTransaction is a function that writes what it gets into a transcript.
func randomTransaction(rnd *rand.Rand, got *[]string) func(store.Tx) error {
	steps := make([]step, 1+rnd.IntN(8))
	for i := range steps {
		steps[i] = randomStep(rnd)
	}
	fails, goesOn := rnd.IntN(10) == 0, rnd.IntN(4) == 0
	return func(tx store.Tx) error {
		*got = nil
		for _, s := range steps {
			if err := s(tx, got); err != nil && !goesOn {
				return err
			}
		}
		if fails {
			return errOfFunction
		}
		return nil
	}
}

// lens are all answers of Len.
func lens(t *testing.T, s *Store) (all []int) {
	t.Helper()
	for c := range 3 {
		for _, index := range []string{"", "i0", "i1", "i2"} {
			n, err := s.Len(t.Context(), store.Collection(fmt.Sprint("c", c)), index)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, n)
		}
	}
	return all
}

// freezeOnly leaves the store as a flush does that fails: the changes so far are frozen, and the next flush writes them.
func freezeOnly(t *testing.T, s *Store) {
	t.Helper()
	if err := s.lockFlush(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	if !s.freeze.active {
		s.freezeHot(s.log.Last())
	}
	s.mu.Unlock()
	<-s.flushing
}

// The engine on disk answers as the one in memory does, whatever is asked, and however changes are divided between
// memory, frozen layers and the state, through restarts and crashes.
func TestDiskAnswersLikeMemory(t *testing.T) {
	for seed := range uint64(deep.Rounds(40, 80)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd, lost := rand.New(rand.NewPCG(seed, 11)), rand.New(rand.NewPCG(seed, 12))
			fs := &faultfs.FS{}
			opts := options(fs)
			opts.LayerBytes = []int64{1, 2 << 10, 8 << 10, 1 << 20}[rnd.IntN(4)]
			opts.FlushBytes = []int64{1, 4 << 10, 1 << 20}[rnd.IntN(3)]
			clock := time.Unix(1, 0)
			opts.Clock = func() time.Time { return clock }
			s, model := mustOpen(t, opts), New(opts)
			reopen := func(image *faultfs.FS) {
				fs = image
				opts.Log.FS, opts.State = fs, fs.Pebble()
				s = mustOpen(t, opts)
			}
			for range 120 {
				switch rnd.IntN(30) {
				case 0:
					if err := s.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
				case 1:
					mustClose(t, s)
					reopen(fs)
				case 2, 3:
					image := fs.Crash()
					if rnd.IntN(2) == 0 {
						image = fs.CrashRandomly(lost)
					}
					mustClose(t, s)
					reopen(image)
				case 4:
					freezeOnly(t, s)
				case 5:
					if got, want := dumped(t, s), dumped(t, model); !slices.Equal(got, want) {
						t.Fatalf("there are\n%q\nwant\n%q", got, want)
					}
				case 6:
					if got, want := lens(t, s), lens(t, model); !slices.Equal(got, want) {
						t.Fatalf("Len says\n%v\nwant\n%v", got, want)
					}
				default:
					var got []string
					fn := randomTransaction(rnd, &got)
					call := (*Store).Update
					if rnd.IntN(4) == 0 {
						call = (*Store).View
					}
					err := call(s, t.Context(), fn)
					answer := got
					wantErr := call(model, t.Context(), fn)
					if !slices.Equal(answer, got) || err != wantErr && fmt.Sprint(err) != fmt.Sprint(wantErr) {
						t.Fatalf("got %v\n%q\nwant %v\n%q", err, answer, wantErr, got)
					}
				}
			}
			mustClose(t, s)
			mustClose(t, model)
		})
	}
}
