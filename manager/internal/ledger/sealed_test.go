package ledger_test

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/crypt"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/ledgertest"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/sealed"
	"github.com/oncegate/oncegate/manager/internal/store/sqlite"
)

// seal returns a store around st whose entries are encrypted.
func seal(t testing.TB, st store.Store) store.Store {
	t.Helper()
	ring, err := crypt.Parse([]byte("k:" + base64.StdEncoding.EncodeToString(make([]byte, crypt.KeyBytes))))
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := sealed.Open(t.Context(), st, sealed.Options{Ring: ring, Places: []sealed.Place{{
		Collection: ledger.Collection, Describe: func(store.Hit, []byte) (entries []store.Entry, more []store.ID, err error) { return },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOnEncryptedWAL(t *testing.T) {
	ledgertest.Run(t, ledgertest.Engine{Name: "encrypted wal", Divided: divided, Open: func(t testing.TB) []store.Store {
		st, err := mem.Open(t.Context(), t.TempDir(), mem.Options{})
		return []store.Store{seal(t, opened(t, st, err))}
	}})
}

func TestOnEncryptedSQLite(t *testing.T) {
	ledgertest.Run(t, ledgertest.Engine{Name: "encrypted sqlite", Divided: divided, Open: func(t testing.TB) []store.Store {
		st, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{})
		return []store.Store{seal(t, opened(t, st, err))}
	}})
}

// BenchmarkEncryption is what encryption costs the ledger: a miss is a reserve and its commit, a hit the replay of an
// answer. Bytes are those of the answer.
func BenchmarkEncryption(b *testing.B) {
	for _, size := range []int{256, 4 << 10, 256 << 10} {
		for _, encrypted := range []bool{false, true} {
			name := map[bool]string{false: "plain", true: "encrypted"}[encrypted]
			open := func(b *testing.B) *ledger.Ledger {
				var st store.Store = opened(b, mem.New(mem.Options{}), nil)
				if encrypted {
					st = seal(b, st)
				}
				l, err := ledger.New(st, ledger.Options{MaxBytes: 64 << 20})
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				return l
			}
			result := (&api.Result{Status: 201, Body: []byte(strings.Repeat("x", size))}).AppendRaw(nil)
			miss := func(b *testing.B, l *ledger.Ledger, key string, ttl time.Duration) {
				r := &api.ReserveRequest{}
				r.Scope, r.Key, r.Token, r.Fingerprint = "example.com/pay", key, "0123456789abcdef0123456789abcdef", "0123456789abcdef"
				if _, err := l.Reserve(b.Context(), r, nil); err != nil {
					b.Fatal(err)
				}
				if err := l.Commit(b.Context(), &ledger.FinishRequest{Scope: r.Scope, Key: key, Token: r.Token, TTL: ttl, Result: result}); err != nil {
					b.Fatal(err)
				}
			}
			b.Run(fmt.Sprintf("miss/%d/%s", size, name), func(b *testing.B) {
				l := open(b)
				for i := range b.N {
					miss(b, l, fmt.Sprint("key-", i), 10*time.Millisecond) // what has expired makes room
				}
			})
			b.Run(fmt.Sprintf("hit/%d/%s", size, name), func(b *testing.B) {
				l := open(b)
				miss(b, l, "key", time.Hour)
				r := &api.ReserveRequest{}
				r.Scope, r.Key, r.Token, r.Fingerprint = "example.com/pay", "key", "fedcba9876543210fedcba9876543210", "0123456789abcdef"
				for range b.N {
					if reply, err := l.Reserve(b.Context(), r, nil); err != nil || reply.State != api.StateCommitted {
						b.Fatal(reply.State, err)
					}
				}
			})
		}
	}
}
