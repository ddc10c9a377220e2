package ledger

import (
	"bytes"
	"errors"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/store"
)

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.Byte(), 0, 200)
		when := rapid.Int64Range(0, 1<<50)
		in := record{
			state:   rapid.SampledFrom(storedStates[:]).Draw(t, "state"),
			created: when.Draw(t, "created"), expires: when.Draw(t, "expires"), touched: when.Draw(t, "touched"),
			token: some.Draw(t, "token"), fingerprint: some.Draw(t, "fingerprint"), ref: some.Draw(t, "ref"),
			result: some.Draw(t, "result"), fence: rapid.Uint64Range(0, maxFence).Draw(t, "fence"),
			explicit: rapid.Bool().Draw(t, "explicit"),
		}
		name := rapid.SliceOfN(rapid.Byte(), 0, maxOriginBytes)
		if in.state.Terminal() {
			in.result = answer(200, string(in.result))
			in.origin, in.hlc = name.Draw(t, "origin"), rapid.Uint64Range(0, MaxHLC).Draw(t, "hlc")
			in.imported = rapid.Bool().Draw(t, "imported")
		} else {
			in.home = name.Draw(t, "home")
		}
		if in.explicit {
			in.unknown = rapid.Int64Range(0, api.MaxTTL.Milliseconds()).Draw(t, "unknown")
		}
		b := appendRecord(nil, &in)
		if n := recordLen(&in); n != len(b) {
			t.Fatalf("%d octets, expected %d", len(b), n)
		}
		if limit := recordOverhead + len(in.token) + len(in.fingerprint) + len(in.ref) + len(in.result); len(b) > limit {
			t.Fatalf("%d octets, more than the bound %d", len(b), limit)
		}
		var out record
		if err := decodeRecord("k", b, &out); err != nil {
			t.Fatal(err)
		}
		if out.size != len(b)+1 {
			t.Fatalf("size %d", out.size)
		}
		if out.unknown != in.unknown || out.explicit != in.explicit {
			t.Fatalf("unknown for %d (%v), was %d (%v)", out.unknown, out.explicit, in.unknown, in.explicit)
		}
		if again := appendRecord(nil, &out); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// FuzzDecodeRecord: whatever is stored, decoding does not panic, and what it
// accepts is encoded to the same meaning again.
func FuzzDecodeRecord(f *testing.F) {
	good := appendRecord(nil, &record{
		state: api.StateCommitted, created: 1, expires: 1 << 40, touched: 3, token: []byte("t"), fingerprint: []byte("f"),
		ref: []byte("job"), result: answer(200, "x"),
	})
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add(appendRecord(nil, &record{state: api.StateUnknown, expires: 1 << 40, unknown: 300_000, explicit: true, token: []byte("t")}))
	f.Add([]byte{recordVersion, byte(api.StatePending), 0})
	f.Add([]byte{recordVersion + 1, 1, 0, 0})
	f.Add(append([]byte{recordVersion, byte(api.StateUnknown), flagImported}, make([]byte, 11)...))
	f.Add(append(append([]byte{recordVersion, byte(api.StateCommitted), 0}, make([]byte, 11)...), 1, 0xc8, 1, 0, 0, 0))
	f.Add([]byte{recordVersion, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r record
		if err := decodeRecord("k", b, &r); err != nil {
			if !errors.Is(err, store.ErrUnreadable) {
				t.Fatal(err)
			}
			return
		}
		var again record
		if err := decodeRecord("k", appendRecord(nil, &r), &again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.result, r.result) || !bytes.Equal(again.token, r.token) || again.expires != r.expires {
			t.Fatalf("%+v became %+v", r, again)
		}
	})
}

func TestRecordKeysDoNotCollide(t *testing.T) {
	seen := make(map[string][2]string)
	for _, scope := range []string{"", "a", "a:", "1:a", "1", ":", strings.Repeat("s", api.MaxScopeBytes)} {
		for _, key := range []string{"a", ":a", "1:a", "aa", "a:a", strings.Repeat("k", api.MaxKeyBytes)} {
			rk := EntryKey(scope, key)
			if other, dup := seen[rk]; dup {
				t.Errorf("%q names both %q and %q", rk, other, [2]string{scope, key})
			}
			seen[rk] = [2]string{scope, key}
			if len(rk) > store.MaxKeyBytes {
				t.Errorf("topic has %d bytes", len(rk))
			}
			s, k, ok := SplitEntryKey(rk)
			if !ok || s != scope || k != key {
				t.Errorf("split %q: %q %q %v", rk, s, k, ok)
			}
		}
	}
	for _, bad := range []string{"", "x", "-1:a", "2:a", "99999999999999999999:a"} {
		if _, _, ok := SplitEntryKey(bad); ok {
			t.Errorf("split %q was accepted", bad)
		}
	}
}

func TestSortKeyOrdersAsTimesDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOf(rapid.Int64Range(0, time.Date(5000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())).Draw(t, "times")
		keys := make([]string, len(times))
		for i, ms := range times {
			keys[i] = sortKey(ms)
			if len(keys[i]) != sortKeyDigits {
				t.Fatalf("%q", keys[i])
			}
		}
		sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
		sort.Strings(keys)
		for i, ms := range times {
			if keys[i] != sortKey(ms) {
				t.Fatalf("order differs at %d", i)
			}
		}
	})
}

func TestDeadlineNeverEndsEarly(t *testing.T) {
	at := time.UnixMilli(1000).Add(900 * time.Microsecond)
	if got := deadline(at, 100*time.Millisecond); got != 1101 {
		t.Errorf("deadline = %d, want 1101: at 1100 only 99.1ms have passed", got)
	}
	if got := deadline(time.UnixMilli(1000), 100*time.Millisecond); got != 1100 {
		t.Errorf("deadline = %d, want 1100", got)
	}
}

func TestRemainingTimeIsRoundedDown(t *testing.T) {
	at := time.UnixMilli(1000).Add(900 * time.Microsecond)
	ends := deadline(at, 100*time.Millisecond)
	for _, c := range []struct{ after, want time.Duration }{
		{0, 100 * time.Millisecond},
		{100 * time.Microsecond, 100 * time.Millisecond},
		{200 * time.Microsecond, 99 * time.Millisecond},
		{99 * time.Millisecond, time.Millisecond},
		{100 * time.Millisecond, time.Millisecond},
	} {
		if got := remaining(ends, at.Add(c.after)); got != c.want {
			t.Errorf("after %v: %v, want %v", c.after, got, c.want)
		}
	}
}

// TestRecordWithHome: an entry whose home is another data centre keeps the name through all that happens to it here.
func TestRecordWithHome(t *testing.T) {
	for _, state := range []api.State{api.StatePending, api.StateUnknown} {
		in := record{state: state, created: 1, expires: 2, touched: 1, explicit: true, unknown: 5, home: []byte("dc2"), token: []byte("t"), fingerprint: []byte("f")}
		value := appendRecord(nil, &in)
		if len(value) != recordLen(&in) {
			t.Errorf("%v: %d bytes, said to be %d", state, len(value), recordLen(&in))
		}
		var out record
		if err := decodeRecord("k", value, &out); err != nil {
			t.Fatal(err)
		}
		if string(out.home) != "dc2" || out.state != state || out.unknown != 5 || string(out.token) != "t" || string(out.fingerprint) != "f" {
			t.Errorf("%v: %+v", state, out)
		}
		for n := range value {
			if err := decodeRecord("k", value[:n], &out); err == nil {
				t.Errorf("%v: the first %d bytes are read as a record", state, n)
			}
		}
	}
}
