package storelogs

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/postgres"
	"github.com/oncegate/oncegate/manager/managertest/servers"
)

// cutter passes connections to a server on, and cuts one when asked.
type cutter struct {
	ln net.Listener
	db servers.Share
	wg sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	// cut, if not nil, sees what a client sends. When it returns true the client is cut off, and late says when the server
	// gets the bytes: never when it is nil.
	cut func([]byte) (cut bool, late <-chan struct{})
}

// newCutter listens in a directory of its own, for an empty database.
func newCutter(t *testing.T) *cutter {
	db := servers.SharedPostgres(t)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), filepath.Base(db.Address)))
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{ln: ln, db: db, conns: make(map[net.Conn]bool)}
	c.wg.Add(1)
	go c.accept()
	t.Cleanup(func() {
		_ = ln.Close()
		c.mu.Lock()
		for conn := range c.conns {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) set(cut func([]byte) (bool, <-chan struct{})) {
	c.mu.Lock()
	c.cut = cut
	c.mu.Unlock()
}

func (c *cutter) accept() {
	defer c.wg.Done()
	for {
		client, err := c.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", c.db.Address)
		if err != nil {
			_ = client.Close()
			continue
		}
		c.mu.Lock()
		c.conns[client], c.conns[server] = true, true
		c.mu.Unlock()
		c.wg.Add(2)
		go func() {
			defer c.wg.Done()
			_, _ = io.Copy(client, server)
			_ = client.Close()
		}()
		go func() {
			defer c.wg.Done()
			c.forward(client, server)
			_ = client.Close()
			_ = server.Close()
		}()
	}
}

func (c *cutter) forward(client, server net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := client.Read(b)
		if err != nil {
			return
		}
		c.mu.Lock()
		cut, late := false, (<-chan struct{})(nil)
		if c.cut != nil {
			cut, late = c.cut(b[:n])
		}
		c.mu.Unlock()
		if !cut {
			if _, err := server.Write(b[:n]); err != nil {
				return
			}
			continue
		}
		_ = client.Close()
		if late == nil {
			return
		}
		<-late
		_, _ = server.Write(b[:n])
		// The server works for nobody, and closes when it notices.
		if half, ok := server.(*net.UnixConn); ok {
			_ = half.CloseWrite()
			_ = half.SetReadDeadline(time.Now().Add(30 * time.Second))
			_, _ = io.Copy(io.Discard, half)
		}
		return
	}
}

// openCut opens an engine through the cutter.
func openCut(t *testing.T, c *cutter) *rig {
	dsn := strings.Replace(c.db.URL, filepath.Dir(c.db.Address), filepath.Dir(c.ln.Addr().String()), 1)
	return newRig(t, func(t *testing.T) store.Store {
		s, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn, MaxConns: 4})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// TestConnectionCutInCommit: the connection ends when the commit is under way. Whether the server got it or not, or gets
// it later, the id has one entry.
func TestConnectionCutInCommit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		got  bool // the server got the commit before the retry
		held bool // it gets it after the retry
	}{"before": {false, false}, "after": {true, false}, "late": {false, true}} {
		t.Run(name, func(t *testing.T) {
			c := newCutter(t)
			r := openCut(t, c)
			caller := &caller{T: t, engine: func() *Engine { return r.Engine }}
			if _, _, err := r.Put(t.Context(), logName, logs.Change{}); err != nil {
				t.Fatal(err)
			}
			caller.expect("1", entry("a", ""))
			late := make(chan struct{})
			arm := func() {
				done := false
				c.set(func(b []byte) (bool, <-chan struct{}) {
					if done || !bytes.Contains(b, []byte("CUT HERE")) {
						return false, nil
					}
					done = true
					switch {
					case test.got:
						return true, closed
					case test.held:
						return true, late
					}
					return true, nil
				})
			}
			arm()
			caller.expect("unavailable", entry("b", "CUT HERE"))
			if test.held { // what ByID says must stay true when the commit arrives
				if _, err := r.ByID(t.Context(), logName, "b"); codeOf(err) != "not-found" {
					t.Errorf("by-id while the commit is held: %v", err)
				}
				close(late)
				late = nil
			}
			if test.got {
				for try := 0; ; try++ { // the server may still be at work
					e, err := r.ByID(t.Context(), logName, "b")
					if err == nil && e.Number == 2 {
						break
					}
					// ByID rewrites the head before it says so: then the commit has failed for good.
					if codeOf(err) == "not-found" {
						break
					}
					t.Fatalf("by-id: %+v, %v", e, err)
				}
			}
			got := caller.say(entry("b", "CUT HERE"))
			if got != "2" && got != "2 again" || got == "2 again" && !test.got {
				t.Errorf("the retry is %s", got)
			}
			caller.expect("2 again, 3", entry("b", "CUT HERE"), entry("c", ""))
			if ids := caller.allIDs(); ids != "a b c" {
				t.Errorf("the log holds %s", ids)
			}
			if late != nil {
				close(late)
			}
		})
	}
}

// TestCutHistoriesAreLinearizable: two managers append to one log while connections are cut in their commits.
func TestCutHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	c := newCutter(t)
	first, second := openCut(t, c), openCut(t, c)
	if _, _, err := first.Put(t.Context(), logName, logs.Change{}); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	var mu sync.Mutex
	seen, cuts, how := 0, 0, rand.New(rand.NewPCG(8, 8)) // guarded by mu
	c.set(func(b []byte) (bool, <-chan struct{}) {
		mu.Lock()
		defer mu.Unlock()
		if !bytes.Contains(b, []byte("log_entries")) || !bytes.Contains(b, []byte("log_heads")) {
			return false, nil // it is no append's commit
		}
		if seen++; seen%6 != 0 || cuts == 6 { // the time of the check grows with what nobody knows
			return false, nil
		}
		cuts++
		if how.IntN(2) == 0 {
			return true, nil
		}
		return true, closed
	})
	var h history
	for range 3 {
		var wg sync.WaitGroup
		for _, r := range []*rig{first, second} {
			rnd := rand.New(rand.NewPCG(rnd.Uint64(), 1))
			wg.Go(func() { h.run(t, r.Engine, 3, 8, rnd, func() bool { return false }) })
		}
		wg.Wait()
	}
	c.set(nil)
	mu.Lock()
	if cuts == 0 {
		t.Errorf("none of %d commits was cut", seen)
	}
	mu.Unlock()
	caller := &caller{T: t, engine: func() *Engine { return second.Engine }}
	h.check(caller)
	once := make(map[string]bool)
	for _, id := range strings.Fields(caller.allIDs()) {
		if once[id] {
			t.Errorf("id %s is in the log twice", id)
		}
		once[id] = true
	}
}
