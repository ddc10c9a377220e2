package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/member"
	"github.com/oncegate/oncegate/manager/internal/store/storetest"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// testPatience bounds what must happen. Only a failing test waits that long.
const testPatience = 2 * time.Minute

func TestMain(m *testing.M) { os.Exit(servers.Sharing(m).Run()) }

// fresh returns the DSN of an empty prefix, in the etcd that the tests share.
func fresh(t *testing.T) string {
	t.Helper()
	return servers.SharedEtcd(t).URL
}

func open(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testPatience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never happened: ", what)
		}
	}
}

func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	for _, garbage := range []string{"", "\xff", "\x01", "\x01\x00\x05", "\x01\x00\x00", "\x01\x00\x00\x02x", "\x01\x00\x00\x01\xff", "\x01\x00\x00\x01\x05none/"} {
		t.Run(fmt.Sprintf("%q", garbage), func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{DSN: fresh(t)})
			storetest.Unreadable(t, s, func(c store.Collection, key string) {
				if _, err := s.c.Put(t.Context(), s.recordKey(c, key), garbage); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestAnotherFormat(t *testing.T) {
	t.Parallel()
	dsn := fresh(t)
	s := open(t, Options{DSN: dsn})
	if _, err := s.c.Put(t.Context(), s.prefix+"/format", "99"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{DSN: dsn}); err == nil || !strings.Contains(err.Error(), `format "99"`) {
		t.Fatalf("error %v", err)
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Options{DSN: "http://u:secret@127.0.0.1:1"})
	if !errors.Is(err, store.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

// TestStrangersInAnIndex: what the engine did not write is nobody's entry, and does not make a scan seem to be at its
// end.
func TestStrangersInAnIndex(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	for i := range 30 {
		if err := storetest.Put(t.Context(), s, fmt.Sprintf("k%02d", i), ""); err != nil {
			t.Fatal(err)
		}
		if _, err := s.c.Put(t.Context(), s.indexKey("things", "byname")+fmt.Sprintf("k%02d no terminator", i/10), ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, claim := range []bool{false, true} {
		err := s.Update(t.Context(), func(tx store.Tx) error {
			hits, err := tx.Scan("things", "byname", store.Range{Limit: 20, Claim: claim})
			if err == nil && (len(hits) != 20 || hits[19].Key != "k19") {
				t.Errorf("claim %v: got %v", claim, hits)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestLargeTransactions: many values that are too large together are written together or not at all, and leave nothing
// behind; what is too much is refused with its limit.
func TestLargeTransactions(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	big := make([]byte, 600<<10)
	put := func(n int) error {
		return s.Update(t.Context(), func(tx store.Tx) error {
			for i := range n {
				if err := tx.Put("things", fmt.Sprint(i), big, store.Entry{Index: "byname", SortKey: "x"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	parts := func() int64 {
		t.Helper()
		resp, err := s.c.Get(t.Context(), s.partsKey(), clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return resp.Count
	}
	for range 2 { // the second time replaces
		if err := put(8); err != nil {
			t.Fatal(err)
		}
		if n := parts(); n < 7 || n > 8 {
			t.Errorf("%d parts", n)
		}
	}
	if v, err := storetest.Get(t.Context(), s, "7"); err != nil || len(v) != len(big) {
		t.Errorf("%d bytes, %v", len(v), err)
	}
	resp, err := s.c.Get(t.Context(), s.partsKey(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range resp.Kvs {
		if kv.Lease != 0 {
			t.Errorf("%s has a lease", kv.Key)
		}
	}
	err = s.Update(t.Context(), func(tx store.Tx) error {
		for i := range 8 {
			if err := tx.Delete("things", fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if n := parts(); err != nil || n != 0 {
		t.Errorf("%d parts are left, %v", n, err)
	}
	err = s.Update(t.Context(), func(tx store.Tx) error {
		for i := range 20000 {
			if err := tx.Put("things", fmt.Sprintf("many%d", i), nil); err != nil {
				return err
			}
		}
		return nil
	})
	var limit *store.LimitError
	if !errors.As(err, &limit) || !errors.Is(err, store.ErrTooLarge) || limit.Value <= limit.Allowed || limit.Allowed != maxRequest {
		t.Errorf("error %v", err)
	}
}

// TestCompactionDuringScans: a history that is compacted away under a long transaction makes it run again.
func TestCompactionDuringScans(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: servers.Etcd(t).URL})
	for i := range 30 {
		if err := storetest.Put(t.Context(), s, fmt.Sprintf("k%02d", i), "1"); err != nil {
			t.Fatal(err)
		}
	}
	runs := 0
	for name, call := range map[string]func(context.Context, func(store.Tx) error) error{"View": s.View, "Update": s.Update} {
		runs = 0
		err := call(t.Context(), func(tx store.Tx) error {
			runs++
			r := store.Range{Limit: 10}
			for page := range 3 {
				hits, err := tx.Scan("things", "byname", r)
				if err != nil {
					return err
				}
				if len(hits) != 10 || hits[9].Key != fmt.Sprintf("k%d9", page) {
					return fmt.Errorf("page %d: %v", page, hits)
				}
				r.After = &hits[9]
				if runs == 1 && page == 0 {
					if _, err := s.c.Put(t.Context(), "/other", "1"); err != nil {
						t.Fatal(err)
					}
					resp, err := s.c.Put(t.Context(), "/other", "2")
					if err != nil {
						t.Fatal(err)
					}
					if _, err := s.c.Compact(t.Context(), resp.Header.Revision); err != nil {
						t.Fatal(err)
					}
				}
			}
			return nil
		})
		if err != nil || runs != 2 {
			t.Errorf("%s: %d runs, %v", name, runs, err)
		}
	}
}

// TestLatePart: a part of a large value whose request arrives once more, after the commit took the lease off, does not get
// the lease again: it would take an acknowledged value with it.
func TestLatePart(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	tx := s.newTx(t.Context(), 0, false)
	parts, err := tx.stage([]byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	key := s.partKey(parts, 0)
	lease := func() clientv3.LeaseID {
		t.Helper()
		resp, err := s.c.Get(t.Context(), key)
		if err != nil || len(resp.Kvs) != 1 {
			t.Fatal(resp, err)
		}
		return clientv3.LeaseID(resp.Kvs[0].Lease)
	}
	before := lease()
	if before == 0 {
		t.Fatal("no lease before the commit")
	}
	if _, err := s.c.Put(t.Context(), key, "", clientv3.WithIgnoreValue()); err != nil { // as the commit does
		t.Fatal(err)
	}
	if err := s.putPart(t.Context(), key, []byte("value"), before); err != nil {
		t.Fatal(err)
	}
	if l := lease(); l != 0 {
		t.Errorf("it has the lease %x", l)
	}
}

// TestNowIsNotBehindARecord: a transaction that has asked for the time and then reads a record that was written later runs
// again with a later time.
func TestNowIsNotBehindARecord(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	var mine, written time.Time
	runs := 0
	err := s.View(t.Context(), func(tx store.Tx) error {
		runs++
		mine = tx.Now()
		for runs == 1 && !written.After(mine) {
			err := s.Update(t.Context(), func(other store.Tx) error {
				written = other.Now()
				return other.Put("things", "k", []byte(written.String()))
			})
			if err != nil {
				return err
			}
		}
		_, err := tx.Get("things", "k")
		return err
	})
	if err != nil || mine.Before(written) {
		t.Errorf("%d runs, %v: it was %v, the record is of %v", runs, err, mine, written)
	}
}

// TestNotesAreGone: etcd forgot the lease of the notes, for example because it was restored from a snapshot.
func TestNotesAreGone(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	if err := storetest.Put(t.Context(), s, "k", "1"); err != nil {
		t.Fatal(err)
	}
	ses, err := s.notes.current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.c.Revoke(t.Context(), ses.lease); err != nil {
		t.Fatal(err)
	}
	if err := storetest.Put(t.Context(), s, "k", "2"); err != nil {
		t.Error(err)
	}
}

// TestManyWithoutASession: commits that find no session, since etcd is away, wait together and not one after the other.
func TestManyWithoutASession(t *testing.T) {
	t.Parallel()
	srv := servers.Etcd(t)
	s := open(t, Options{DSN: srv.URL})
	ses, err := s.notes.current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.notes.lost(ses)
	srv.Kill()
	const calls = 200 // one after the other they take a quarter of an hour
	done := make(chan error, calls)
	for range calls {
		go func() {
			_, _, err := s.notes.take(t.Context())
			done <- err
		}()
	}
	patience := time.After(testPatience)
	for i := range calls {
		select {
		case err := <-done:
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%v", err)
			}
		case <-patience:
			t.Fatalf("%d of %d calls ended", i, calls)
		}
	}
}

// enableUsers makes etcd ask for users: root, and me with the password secret, who may use what is below /oncegate/.
func enableUsers(t *testing.T, admin *clientv3.Client) {
	t.Helper()
	ctx := t.Context()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(admin.UserAdd(ctx, "root", "root"))
	do(admin.UserGrantRole(ctx, "root", "root"))
	do(admin.RoleAdd(ctx, "gate"))
	do(admin.RoleGrantPermission(ctx, "gate", "/oncegate/", clientv3.GetPrefixRangeEnd("/oncegate/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	do(admin.UserAdd(ctx, "me", "secret"))
	do(admin.UserGrantRole(ctx, "me", "gate"))
	do(admin.AuthEnable(ctx))
}

// TestUsers: the store works with a user that has no rights but those below its prefix.
func TestUsers(t *testing.T) {
	t.Parallel()
	srv := servers.Etcd(t)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.URL}, DialTimeout: testPatience})
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	ctx := t.Context()
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	enableUsers(t, admin)
	s := open(t, Options{DSN: strings.Replace(srv.URL, "://", "://me:secret@", 1)})
	do(nil, storetest.Put(ctx, s, "a", "1"))
	if space := s.Capabilities().Space(ctx); !space.Majority || space.Bytes == 0 {
		t.Errorf("its user may not ask for the state: %+v", space)
	}
	do(nil, s.Update(ctx, func(tx store.Tx) error { // transactions inside one
		for i := range 300 {
			if err := tx.Put("things", fmt.Sprint(i), nil); err != nil {
				return err
			}
		}
		return nil
	}))
	for name, dsn := range map[string]string{"wrong password": strings.Replace(srv.URL, "://", "://me:wrong@", 1), "no user": srv.URL} {
		if _, err := Open(ctx, Options{DSN: dsn}); err == nil || strings.Contains(err.Error(), "wrong@") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(ctx, Options{DSN: strings.Replace(srv.URL, "://", "://me:secret@", 1) + "?prefix=/other"}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("another prefix: %v", err)
	}
}

func now(t *testing.T, s *Store) (at time.Time) {
	t.Helper()
	if err := s.View(t.Context(), func(tx store.Tx) error { at = tx.Now(); return nil }); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestLostAnswers: a commit whose answer is lost is settled exactly.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: fresh(t)})
	if err := storetest.Put(t.Context(), s, "k", "1"); err != nil {
		t.Fatal(err)
	}
	note, number, err := s.notes.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commit := func() bool {
		t.Helper()
		resp, err := s.txn(t.Context(), []*pb.Compare{same(note.key, note.rev)},
			[]*pb.RequestOp{putLeased([]byte(note.key), appendNote(number, []string{"topic"}), note.session.lease)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	before := *note
	if happened, err := s.notes.settle(t.Context(), note, number); happened || err != nil {
		t.Errorf("a commit that did not happen: %v, %v", happened, err)
	}
	current := *note
	if *note = before; commit() {
		t.Error("it happened after all")
	}
	if *note = current; !commit() {
		t.Fatal("the next commit was refused")
	}
	if happened, err := s.notes.settle(t.Context(), note, number); !happened || err != nil {
		t.Errorf("a commit that happened: %v, %v", happened, err)
	}
	if _, err := s.c.Revoke(t.Context(), note.session.lease); err != nil {
		t.Fatal(err)
	}
	if happened, err := s.notes.settle(t.Context(), note, number); happened || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a note that is gone: %v, %v", happened, err)
	}
	eventually(t, "a new session", func() bool { return storetest.Put(t.Context(), s, "k", "2") == nil })
}

func FuzzNote(f *testing.F) {
	f.Add(appendNote(7, []string{"a", ""}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, topics, ok := splitNote(b); ok {
			again, same, ok := splitNote(appendNote(n, topics))
			if !ok || again != n || len(same) != len(topics) {
				t.Errorf("%q: %d %q", b, n, topics)
			}
		}
		_, _ = member.Split(string(b))
	})
}

// TestUsedCreatesNothing: a look at a prefix that no manager has used leaves it empty.
func TestUsedCreatesNothing(t *testing.T) {
	t.Parallel()
	srv := servers.Etcd(t)
	if _, err := Open(t.Context(), Options{DSN: srv.URL, Used: true}); !errors.Is(err, store.ErrUnused) {
		t.Errorf("an unused prefix: %v", err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{srv.URL}, DialTimeout: testPatience})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := c.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != 0 {
		t.Errorf("etcd has %v, %v", got, err)
	}
	open(t, Options{DSN: srv.URL})
	open(t, Options{DSN: srv.URL, Used: true})
}
