package api

import (
	"bytes"
	"errors"
	"strconv"
	"testing"
)

func TestRawBatchHasItsItems(t *testing.T) {
	trace := [][2]string{{"x-request-id", "r1"}, {"traceparent", "00-1-2-01"}}
	raw := AppendRawBatch(nil, 2)
	raw = AppendRawItem(raw, OpReserve, trace, []byte("one"))
	raw = AppendRawItem(raw, Op(99), nil, nil)
	items, err := ViewRawBatch(nil, raw)
	if err != nil || len(items) != 2 {
		t.Fatalf("%d items, %v", len(items), err)
	}
	if i := items[0]; i.Op != OpReserve || len(i.Trace) != 2 || i.Trace[1] != (Header{"traceparent", "00-1-2-01"}) || string(i.Message) != "one" {
		t.Errorf("first item %+v", i)
	}
	if i := items[1]; i.Op != 99 || len(i.Trace) != 0 || len(i.Message) != 0 {
		t.Errorf("second item %+v", i)
	}
	for n := range raw {
		if _, err := ViewRawBatch(nil, raw[:n]); err == nil {
			t.Errorf("the first %d bytes are taken for a batch", n)
		}
	}
	if _, err := ViewRawBatch(nil, append(bytes.Clone(raw), 0)); err == nil {
		t.Error("a byte too many is not noticed")
	}
}

func TestRawBatchBounds(t *testing.T) {
	for _, n := range []int{0, MaxBatchItems + 1} {
		raw := AppendRawBatch(nil, n)
		for range n {
			raw = AppendRawItem(raw, OpRelease, nil, nil)
		}
		_, err := ViewRawBatch(nil, raw)
		var e *RawError
		if !errors.As(err, &e) {
			t.Fatalf("%d items: %v", n, err)
		}
		want := 400
		if n > 0 {
			want = 413
		}
		if p := e.Problem(); p.Status != want {
			t.Errorf("%d items: status %d, want %d", n, p.Status, want)
		}
	}
}

func TestRawAnswersHaveTheirItems(t *testing.T) {
	raw := AppendRawAnswers(nil, 2)
	raw = AppendRawAnswer(raw, 201, 0, []byte("a"))
	raw = AppendRawAnswer(raw, 503, 7, nil)
	got, err := ViewRawAnswers(nil, raw)
	if err != nil || len(got) != 2 || got[0].Status != 201 || string(got[0].Body) != "a" || got[1].RetryAfterSeconds != 7 {
		t.Fatalf("%+v, %v", got, err)
	}
	for n := range raw {
		if _, err := ViewRawAnswers(nil, raw[:n]); err == nil {
			t.Errorf("the first %d bytes are taken for answers", n)
		}
	}
}

// The owners below were computed once and must never change: gates and managers of different versions
// must agree.
func TestOwnerIsFixed(t *testing.T) {
	shards := []string{"oncegate_manager_0", "oncegate_manager_1", "oncegate_manager_2"}
	got := ""
	for i := range 32 {
		got += strconv.Itoa(Owner(shards, "scope", "key-"+strconv.Itoa(i)))
	}
	if want := "11121012110200210220021221221202"; got != want {
		t.Errorf("owners %s, want %s", got, want)
	}
	if Owner(nil, "", "k") != -1 || Owner(shards[:1], "", "k") != 0 {
		t.Error("none and one")
	}
}

func TestOwnerIsFair(t *testing.T) {
	var shards []string
	for i := range 5 {
		shards = append(shards, "shard-"+strconv.Itoa(i))
	}
	const keys = 50000
	count := make([]int, 5)
	moved := 0
	for i := range keys {
		key := strconv.Itoa(i)
		o := Owner(shards, "s", key)
		count[o]++
		four := Owner(shards[:4], "s", key)
		if o != 4 && four != o {
			t.Fatalf("key %s moves from shard %d to %d, which is not the new one", key, four, o)
		}
		if o == 4 {
			moved++
		}
		if swapped := []string{shards[3], shards[0], shards[4], shards[2], shards[1]}; swapped[Owner(swapped, "s", key)] != shards[o] {
			t.Fatalf("key %s: the owner depends on the order", key)
		}
	}
	for i, n := range count {
		if n < keys/5*9/10 || n > keys/5*11/10 {
			t.Errorf("shard %d owns %d of %d keys", i, n, keys)
		}
	}
}
