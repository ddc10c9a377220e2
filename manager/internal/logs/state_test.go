package logs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

func newTestState(id Identity) *State {
	c := DefaultConfig()
	c.Identity = id
	return NewState(Settings{"log", HashKey{7}, c}, 1, 0, 0, 0)
}

// judge appends items at a log time in seconds.
func judge(s *State, at int, atomic bool, items ...Item) []Outcome {
	b := s.Prepare(items, atomic)
	s.Judge(b, int64(at)*int64(time.Second))
	return b.Outcomes
}

func code(err error) string {
	var e *Error
	var f *api.FieldError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return string(e.P.Code)
	case errors.As(err, &f):
		return "field " + f.Field
	}
	return err.Error()
}

// brief shows outcomes as "1", "1 again" or a code.
func brief(out []Outcome) string {
	var parts []string
	for _, o := range out {
		switch {
		case o.Err != nil:
			parts = append(parts, code(o.Err))
		case o.Duplicate:
			parts = append(parts, fmt.Sprint(o.Number, " again"))
		default:
			parts = append(parts, fmt.Sprint(o.Number))
		}
	}
	return strings.Join(parts, ", ")
}

func item(id, payload string) Item { return Item{ID: id, Payload: []byte(payload)} }

func expect(t *testing.T, out []Outcome, want string) {
	t.Helper()
	if got := brief(out); got != want {
		t.Errorf("the outcomes are %s, want %s", got, want)
	}
}

func TestJudgeIDs(t *testing.T) {
	s := newTestState(IDs)
	expect(t, judge(s, 0, false, item("a", "1"), item("b", "1"), item("a", "1"), item("a", "2"), item("", "x"), item("", "x")),
		"1, 2, 1 again, payload-mismatch, 3, 4")
	expect(t, judge(s, 1, false, item("b", "1"), item("c", "")), "2 again, 5")
	md5 := judge(s, 1, false, Item{Derive: DeriveMD5, Payload: []byte("hello")}, Item{ID: "5d41402abc4b2a76b9719d911017c592", Payload: []byte("hello")})
	expect(t, md5, "6, 6 again")
	if md5[0].ID != "5d41402abc4b2a76b9719d911017c592" {
		t.Errorf("the derived id is %q", md5[0].ID)
	}
	expect(t, judge(s, 1, false, Item{Derive: DeriveSHA256, Payload: []byte("hello")}, Item{Derive: DeriveSHA256, Payload: []byte("hello")}), "7, 7 again")
	expect(t, judge(s, 1, false, Item{ID: "x", Derive: DeriveMD5}, item(strings.Repeat("x", 256), ""), Item{Epoch: 3}, Item{Payload: make([]byte, MaxPayloadBytes+1)}),
		"field derive, field id, field epoch, too-large")
}

// One that is refused keeps the others out, and their ids free.
func TestRefusedItemKeepsItsAtomicBatchOut(t *testing.T) {
	s := newTestState(IDs)
	judge(s, 0, false, item("a", "1"))
	expect(t, judge(s, 0, true, item("n", "1"), item("n", "1"), item("a", "2"), item("a", "1")), "not-written, not-written, payload-mismatch, 1 again")
	expect(t, judge(s, 0, true, item("n", "1"), item("m", "1"), item("a", "1")), "2, 3, 1 again")
	expect(t, judge(s, 0, true, item("n", "1"), item("m", "1"), item("a", "1")), "2 again, 3 again, 1 again")
	c := newTestState(Structured)
	expect(t, judge(c, 0, true, item(seq(1), "1"), item(seq(3), "3")), "not-written, sequence-gap")
	expect(t, judge(c, 0, true, item(seq(1), "1"), item(seq(2), "2")), "1, 2")
}

func seq(n int) string { return fmt.Sprintf("host:%d:00112233445566aa", n) }

func TestStructuredIdsShowGaps(t *testing.T) {
	s := newTestState(Structured)
	expect(t, judge(s, 0, false, item(seq(2), "2"), item("other", ""), item("", "")), "sequence-gap, field id, field id")
	expect(t, judge(s, 0, false, item(seq(1), "1"), item(seq(2), "2"), item(seq(4), "4"), item(seq(3), "3"), item(seq(2), "x"), item(seq(1), "1")),
		"1, 2, sequence-gap, 3, payload-mismatch, 1 again")
	expect(t, judge(s, 0, false, item(seq(0), "0")), "sequence-gap")
	// Another nonce counts by itself, and may begin with 0.
	other := func(n int) Item { return item(fmt.Sprintf("host:%d:ffffffffffffffff", n), "p") }
	expect(t, judge(s, 0, false, other(0), other(1), other(0)), "4, 5, 4 again")
	// A nonce is any text, and is compared byte by byte. No two pairs of client and nonce are taken for one.
	expect(t, judge(s, 0, false, item("h:o:1:n1", "p"), item("h:o:2:n1", "p"), item("h:o:2:N1", "p"), item(":o:1:n1h", "p"), item("h:o:1:n1", "p")), "6, 7, sequence-gap, 8, 6 again")
	expect(t, judge(s, 0, false, item("host:1:", ""), item(":1:n", ""), item("1:n", ""), item("host:01:n", ""), item("host:-1:n", ""), item("host:1:n:", "")),
		"field id, field id, field id, field id, field id, field id")
	for i := 4; i < 200; i++ { // alone: one run
		judge(s, 0, false, item(seq(i), "p"))
	}
	expect(t, judge(s, 1000, false, item(seq(1), "1"), item(seq(199), "p"), item(seq(199), "q"), item(seq(200), "p")), "1 again, 204 again, payload-mismatch, 205")
	for i := 201; i < 300; i++ { // with company: a run for each
		judge(s, 0, false, item(seq(i), "p"), other(i-199))
	}
	out := judge(s, 1000, false, item(seq(299), "p"), item(seq(220), "p"))
	if !out[0].Duplicate || out[0].Number == 0 || !out[1].Duplicate || out[1].Number != 0 || out[1].Err != nil {
		t.Errorf("a late and an early retry give %+v", out)
	}
}

// TestFullWindowRefuses: engines forget ids; a state that is made after that takes new ones.
func TestFullWindowRefuses(t *testing.T) {
	s := newTestState(IDs)
	s.config.MaxKeys, s.config.RefuseWhenFull = 3, true
	judge(s, 0, false, item("a", ""), item("b", ""), item("c", ""))
	expect(t, judge(s, 1, false, item("d", ""), item("a", ""), item("", "no id")), "window-full, 1 again, 4")
	later := NewState(Settings{"log", HashKey{7}, s.config}, 5, 301*int64(time.Second), 2, 0)
	expect(t, judge(later, 301, false, item("d", ""), item("e", "")), "5, window-full")
}

// TestClientSurvivesItsRecord: a client that was written and loaded again knows the same.
func TestClientSurvivesItsRecord(t *testing.T) {
	s := newTestState(Structured)
	for i := 1; i < 1000; i++ {
		judge(s, i/100, false, item(seq(i), fmt.Sprint(i)))
	}
	r := newTestState(Structured)
	r.next = s.next
	if err := s.EachClient(r.LoadClient); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < 1000; i += 7 {
		in := item(seq(i), fmt.Sprint(i))
		if got, want := judge(r, 120, false, in), judge(s, 120, false, in); brief(got) != brief(want) || !got[0].Duplicate {
			t.Errorf("%d gives %s from the record, %s before", i, brief(got), brief(want))
		}
	}
}

func FuzzParseStructured(f *testing.F) {
	for _, id := range []string{seq(1), "a:b:3:00112233445566aa", "::", "c:0:n", "x:01:00112233445566aa", "x:18446744073709551615:00112233445566aa"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		s, err := parseStructured(id)
		if err == nil && (fmt.Sprintf("%s:%d:%s", s.client, s.sequence, s.nonce) != id || s.client == "" || s.nonce == "" || s.sequence > math.MaxInt64) {
			t.Errorf("%q is read as %+v", id, s)
		}
	})
}

func FuzzEntries(f *testing.F) {
	f.Add(AppendEntries(nil, 5, 77, []Entry{{ID: "a", Payload: []byte("p"), Properties: []Property{{"k", "v"}}}, {Payload: []byte{}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var all []Entry
		var first, at = uint64(0), int64(0)
		err := EachEntry(b, func(e *Entry, now int64) error {
			if len(all) == 0 {
				first, at = e.Number, now
			}
			all = append(all, *e)
			return nil
		})
		if err != nil {
			return
		}
		var again []Entry
		if err := EachEntry(AppendEntries(nil, first, at, all), func(e *Entry, _ int64) error { again = append(again, *e); return nil }); err != nil || len(again) != len(all) {
			t.Errorf("entries that were read are not written as such: %v", err)
		}
	})
}

func FuzzLoad(f *testing.F) {
	s := newTestState(Structured)
	judge(s, 0, false, item(seq(1), "1"))
	_ = s.EachClient(func(_ Hash, rec []byte) error { f.Add(bytes.Clone(rec)); return nil })
	f.Add(make([]byte, IDBytes))
	f.Fuzz(func(t *testing.T, rec []byte) {
		var h Hash
		copy(h[:], rec)
		c := newTestState(Structured)
		if err := c.LoadClient(h, rec); err == nil && c.clients.byHash[h] == nil {
			t.Error("no client and no error")
		}
		if err := newTestState(IDs).LoadID(h, rec); (err == nil) != (len(rec) == IDBytes) {
			t.Errorf("an id of %d bytes: %v", len(rec), err)
		}
	})
}
