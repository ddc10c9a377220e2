package walogs

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// TestSealedEntries: entries open under their key and in their log only, and not when they were cut.
func TestSealedEntries(t *testing.T) {
	ring := func(id string, fill byte) *crypt.Keyring {
		r, err := crypt.Parse([]byte(id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, crypt.KeyBytes))))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	entries := logs.AppendEntries(nil, 1, 1, []logs.Entry{{Number: 1, ID: "4242", Payload: []byte("4242")}})
	o := Options{Ring: ring("k1", 1)}
	sealed := o.seal("payments", append([]byte{kindEntries}, entries...))
	if bytes.Contains(sealed, []byte("4242")) {
		t.Error("the record has the entry")
	}
	if got, ok, err := openEntries(o.Ring, "payments", sealed); !ok || err != nil || !bytes.Equal(got, entries) {
		t.Errorf("%q %t %v", got, ok, err)
	}
	var missing *crypt.NoKeyError
	for name, c := range map[string]struct {
		ring   *crypt.Keyring
		log    string
		record []byte
		lacks  bool
	}{
		"another log": {o.Ring, "refunds", sealed, false},
		"cut":         {o.Ring, "payments", sealed[:len(sealed)-1], false},
		"wrong key":   {ring("k1", 2), "payments", sealed, false},
		"another key": {ring("k2", 1), "payments", sealed, true},
		"no key":      {nil, "payments", sealed, true},
	} {
		got, ok, err := openEntries(c.ring, c.log, c.record)
		if !ok || got != nil || c.lacks && !errors.As(err, &missing) || !c.lacks && !errors.Is(err, crypt.ErrDamaged) {
			t.Errorf("%s: %q %t %v", name, got, ok, err)
		}
		if err := eachEntry(c.ring, c.log, c.record, func(*logs.Entry, int64) error { t.Errorf("%s: an entry", name); return nil }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
