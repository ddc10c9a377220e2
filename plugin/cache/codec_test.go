package cache

import (
	"bytes"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// sampleRecord is a record with every kind of way.
func sampleRecord() *record {
	r := &record{n: 2}
	r.ways[0] = way{state: api.StatePending, cacheOnly: true, owner: 7, hash: Hash{1}, token: Token{2}, print: Fingerprint{3}, expires: 1 << 60, lastUse: 1<<60 - 1, valueBytes: 9}
	r.ways[3] = way{state: api.StateCommitted, body: true, hash: Hash{4}, token: Token{5}, expires: -1, valueBytes: 1<<32 - 1}
	r.ways[4] = way{state: api.StateRejected, body: true, learned: true, valueBytes: 70, hash: Hash{6}}
	r.ways[7] = way{valueBytes: 33}
	r.waiters[0] = waiter{0, 1<<32 - 1}
	r.waiters[1] = waiter{0, 0}
	return r
}

func TestRecordRoundTrip(t *testing.T) {
	for name, r := range map[string]*record{"empty": {}, "sample": sampleRecord()} {
		b := r.append([]byte("prefix"))[len("prefix"):]
		var got record
		if !got.decode(b) || got != *r {
			t.Errorf("%s: decoded %+v, want %+v", name, got, *r)
		}
	}
	full := &record{n: MaxWaiters}
	for i := range full.ways {
		full.ways[i] = way{state: api.StatePending, hash: Hash{byte(i + 1)}}
	}
	if n := len(full.append(nil)); n != maxRecord {
		t.Errorf("the largest record has %d bytes, maxRecord is %d", n, maxRecord)
	}
}

// TestEncodingOfRecordsIsPinned pins the encoding: gates of different builds share it. A
// change needs a new recordVersion.
func TestEncodingOfRecordsIsPinned(t *testing.T) {
	r := &record{n: 1}
	r.ways[2] = way{state: api.StatePending, cacheOnly: true, owner: 0x01020304, hash: Hash{0xaa}, token: Token{0xbb}, print: Fingerprint{0xcc}, expires: 5, lastUse: 4, valueBytes: 6}
	r.waiters[0] = waiter{2, 9}
	zeros := bytes.Repeat([]byte{0}, 15)
	want := append([]byte{'o', 'g', 1, 1, 1, 2, 1, 1, 1, 2, 3, 4, 0xaa}, zeros...)
	want = append(append(want, 0xbb), zeros...)
	want = append(append(want, 0xcc), zeros...)
	want = append(want, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 6, 2, 0, 0, 0, 9)
	if got := r.append(nil); !bytes.Equal(got, want) {
		t.Errorf("encoded\n%x, want\n%x", got, want)
	}
}

// FuzzRecord: a record that decodes encodes to the same bytes again. All other
// input is refused without a panic.
func FuzzRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add((&record{}).append(nil))
	f.Add(sampleRecord().append(nil))
	f.Add([]byte("og\x02\x08\x40"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r record
		if !r.decode(b) {
			return
		}
		if again := r.append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x decodes, but encodes to %x", b, again)
		}
	})
}

// FuzzStoredValues runs every operation on a table whose bucket, region
// and sweep records and answers hold arbitrary bytes: nothing panics, a reservation
// made on top of it works, and the bytes end up within the bound.
func FuzzStoredValues(f *testing.F) {
	f.Add(sampleRecord().append(nil), []byte("x"), []byte{}, []byte{})
	f.Add([]byte{}, []byte{}, []byte{}, []byte("or\x01"))
	f.Add((&record{}).append(nil), appendValue(nil, &Hash{4}, &Token{5}, []byte("x")), (&sweepState{buckets: 9, position: 3}).append(nil), append([]byte("or\x01"), bytes.Repeat([]byte{0xff}, 16)...))
	f.Fuzz(func(t *testing.T, rec, value, sweep, region []byte) {
		if len(value) > 1<<12 || len(rec) > 1<<12 || len(sweep) > 1<<12 || len(region) > 1<<12 {
			return
		}
		h := newHost(envoy)
		tab := newTable(h, Options{MaxEntries: 16, MaxBytes: minBytes, MaxResultBytes: 40 << 10, TouchInterval: -1})
		hash := hashOf(1, 1)
		bucket := tab.bucket(&hash)
		h.Set(tab.recordKey(bucket), rec, 0)
		for slot := 0; slot < Ways; slot++ {
			h.Set(tab.valueKey(bucket, slot), value, 0)
		}
		h.Set(tab.regionKey(0), region, 0)
		h.Set(tab.sweepKey(), sweep, 0)
		var r record
		hashes := []Hash{hash, {}}
		if r.decode(rec) {
			for i := range r.ways {
				hashes = append(hashes, r.ways[i].hash)
			}
		}
		for _, now := range []int64{0, 1 << 61} {
			for i, k := range hashes {
				// The set of a hash from the record need not be the one that the
				// record lies in; both are used.
				var e Entry
				if tab.Lookup(&k, now, &e) {
					tab.Body(&e)
				}
				tab.AddWaiter(&k, 1, now)
				token := tokenOf(i + 1)
				res, _ := tab.Reserve(&Reservation{Hash: k, Token: token, Expires: now + 9}, now, &e)
				for _, size := range []int{10, 30 << 10} {
					o := Outcome{Hash: k, Token: token, State: api.StateCommitted, Expires: now + 9, Learned: i%2 == 0, Raw: make([]byte, size)}
					tab.Finish(&o, now)
				}
				if res == Created && now > 0 { // by then it was swept
					if !tab.Lookup(&k, now, &e) || e.Token != token {
						t.Errorf("what was reserved and finished is not there: %+v", e)
					}
				}
				tab.Release(&k, &token, now)
				tab.Sweep(100, now)
			}
		}
	})
}
