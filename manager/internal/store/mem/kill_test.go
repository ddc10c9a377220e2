package mem

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/wal"
	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// killChildEnv makes the test binary the process that gets killed; its value
// is the data directory.
const killChildEnv = "ONCEGATE_MEM_KILL_CHILD"

const (
	killWorkers = 8
	killKeys    = 40 // per worker
)

// Each transaction of a worker w changes a pair of records, "w.k.a" and
// "w.k.b", to the same number, which grows with each, and counts it in the
// worker's own counter record. So whatever is found after a kill -9 shows
// whether a transaction is there in whole.
func killTransaction(w, k, n int, remove bool) func(store.Tx) error {
	return func(tx store.Tx) error {
		value := []byte(strconv.Itoa(n))
		for _, half := range []string{"a", "b"} {
			key := fmt.Sprintf("%d.%d.%s", w, k, half)
			var err error
			if remove {
				err = tx.Delete(things, key)
			} else {
				err = tx.Put(things, key, value, store.Entry{Index: byName, SortKey: fmt.Sprintf("%010d", n)})
			}
			if err != nil {
				return err
			}
		}
		return tx.Put("counters", strconv.Itoa(w), []byte(fmt.Sprintf("%d %d %v", n, k, remove)))
	}
}

// killOptions make segments and layers small, so that kills hit rolls, flushes and compactions too.
func killOptions() Options {
	return Options{
		LayerBytes: 30 << 10,
		FlushBytes: 200 << 10,
		Log:        wal.Options{SegmentBytes: 64 << 10, FillAhead: 32 << 10},
	}
}

// runKillChild is the process under load. It writes a line "worker number" for
// every transaction that was acknowledged.
func runKillChild(dir string) error {
	s, err := Open(context.Background(), dir, killOptions())
	if err != nil {
		return err
	}
	next := make([]int, killWorkers)
	for w := range next {
		n, _, _, err := killCounter(s, w)
		if err != nil {
			return err
		}
		next[w] = n + 1
	}
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	failed := make(chan error, killWorkers)
	for w := range killWorkers {
		go func() {
			rnd := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
			for n := next[w]; ; n++ {
				err := s.Update(context.Background(), killTransaction(w, rnd.IntN(killKeys), n, rnd.IntN(5) == 0))
				if err == nil {
					mu.Lock()
					_, err = fmt.Fprintln(out, w, n)
					err = errors.Join(err, out.Flush())
					mu.Unlock()
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

func killCounter(s *Store, w int) (n, k int, removed bool, err error) {
	err = s.View(context.Background(), func(tx store.Tx) error {
		v, err := tx.Get("counters", strconv.Itoa(w))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = fmt.Sscanf(string(v), "%d %d %t", &n, &k, &removed)
		return err
	})
	return n, k, removed, err
}

// TestKill9 kills a process under load with SIGKILL again and again: every
// acknowledged transaction is there afterwards, and none is half there.
func TestKill9(t *testing.T) {
	if dir := os.Getenv(killChildEnv); dir != "" {
		t.Fatalf("the child stopped by itself: %v", runKillChild(dir))
	}
	rounds := deep.Rounds(3, 8)
	dir := t.TempDir()
	acked := make([]int, killWorkers)
	total := 0
	for round := range rounds {
		lines := 200 + round*331%900 // kill after that many acknowledgements
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill9$")
		child.Env = append(os.Environ(), killChildEnv+"="+dir)
		var stderr strings.Builder
		child.Stderr = &stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(out)
		for n := 0; n < lines && sc.Scan(); n++ {
			total += killAck(t, acked, sc.Text())
		}
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for sc.Scan() { // what the pipe still holds was acknowledged too
			total += killAck(t, acked, sc.Text())
		}
		if err := child.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the child ended with %v: %s", err, stderr.String())
		}
		checkKilled(t, dir, acked)
	}
	t.Logf("%d transactions were acknowledged over %d kills", total, rounds)
	if total < rounds*200 {
		t.Errorf("only %d transactions were acknowledged", total)
	}
}

// killAck notes an acknowledgement. Lines are written in one go and shorter
// than a pipe's atomic write, so a kill does not cut them.
func killAck(t *testing.T, acked []int, line string) int {
	var w, n int
	if c, err := fmt.Sscanf(line, "%d %d", &w, &n); c != 2 || err != nil || w < 0 || w >= len(acked) {
		t.Fatalf("the child wrote %q", line)
	}
	acked[w] = max(acked[w], n)
	return 1
}

func checkKilled(t *testing.T, dir string, acked []int) {
	t.Helper()
	s, err := Open(t.Context(), dir, killOptions())
	if err != nil {
		t.Fatalf("Open after a kill: %v", err)
	}
	defer mustClose(t, s)
	for w := range killWorkers {
		n, k, removed, err := killCounter(s, w)
		if err != nil {
			t.Fatal(err)
		}
		// One more than acknowledged may be there: it was on its way.
		if n < acked[w] || n > acked[w]+1 {
			t.Errorf("worker %d: transaction %d is the last, %d was acknowledged", w, n, acked[w])
		}
		want := strconv.Itoa(n)
		if removed {
			want = absent
		}
		if a := mustGet(t, s, fmt.Sprintf("%d.%d.a", w, k)); n > 0 && a != want {
			t.Errorf("worker %d: the last transaction %d left %s, want %s", w, n, a, want)
		}
		for k := range killKeys {
			a, b := mustGet(t, s, fmt.Sprintf("%d.%d.a", w, k)), mustGet(t, s, fmt.Sprintf("%d.%d.b", w, k))
			if a != b {
				t.Errorf("worker %d: half a transaction: a is %s, b is %s", w, a, b)
			}
		}
	}
	dumped(t, s)
}
