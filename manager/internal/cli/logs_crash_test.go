package cli

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
)

// TestLogsSurviveCrashes kills the real program again and again while writers append, alone and in
// batches. What was acknowledged is in the log once, where its writer was told, and each writer's
// messages are in its order. A reader that follows meanwhile sees the same entries.
func TestLogsSurviveCrashes(t *testing.T) {
	const writers, underWay = 12, 8
	m := &movingManager{next: &http.Transport{MaxIdleConnsPerHost: 64}, addrs: make([]atomic.Pointer[string], 1)}
	defer m.next.CloseIdleConnections()
	dir := t.TempDir()
	var p *process
	start := func() {
		p = startManager(t, "--data-dir", dir)
		addr := p.addr["api"]
		m.addrs[0].Store(&addr)
	}
	start()
	c, err := client.New(client.Options{URL: "http://manager", HTTP: &http.Client{Transport: m}, Timeout: patience, BackoffBase: time.Millisecond, BackoffMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	l, err := c.OpenLog("events")
	if err != nil {
		t.Fatal(err)
	}
	rounds := crashRoundsOr(t, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(rounds)*10*time.Second)
	defer cancel()
	if _, err := l.Create(ctx, client.LogConfig{}); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var answered atomic.Int64
	told := make([]map[string]uint64, writers)
	var wg sync.WaitGroup
	for i := range writers {
		told[i] = make(map[string]uint64)
		wg.Add(1)
		go func() {
			defer wg.Done()
			w, err := l.OpenIdempotentWriter(ctx, client.WriterOptions{Writer: fmt.Sprint("writer-", i)})
			if err != nil {
				t.Error(err)
				return
			}
			for n := 0; !stop.Load(); {
				var results []<-chan client.WriteResult
				for range 1 + i%underWay {
					n++
					id := fmt.Sprintf("%d:%06d", i, n)
					results = append(results, w.WriteAsync(ctx, client.WriteMessage{IdempotencyID: id, Payload: bytes.Repeat([]byte(id), 1+n%20)}))
				}
				for _, result := range results {
					r := <-result
					if r.Err != nil {
						t.Errorf("writer %d: %v", i, r.Err)
						return
					}
					told[i][r.ID] = r.LogMessageID.Entry
					answered.Add(1)
				}
			}
			if err := w.Close(ctx); err != nil {
				t.Error(err)
			}
		}()
	}
	followed := make(chan []string, 1)
	caughtUp := make(chan string, 1)
	go func() {
		var ids []string
		after, last := "", ""
		for {
			select {
			case last = <-caughtUp:
			default:
			}
			if after == last && last != "" {
				break
			}
			page, err := l.Read(ctx, client.LogQuery{After: after, Wait: 100 * time.Millisecond})
			if err != nil {
				t.Errorf("the reader: %v", err)
				break
			}
			for _, e := range page.Entries {
				ids = append(ids, e.ID)
			}
			after = page.Cursor
		}
		followed <- ids
	}()
	for range rounds {
		enough := answered.Load() + 1 + rand.Int64N(500)
		waitFor(t, "entries are acknowledged", func() bool { return answered.Load() >= enough || t.Failed() })
		p.kill()
		start()
	}
	stop.Store(true)
	wg.Wait()

	seen := make(map[string]uint64)
	lastOf := make(map[string]string)
	var order []string
	after, number := "", uint64(0)
	for {
		page, err := l.Read(ctx, client.LogQuery{After: after, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			if number++; e.Entry != number {
				t.Fatalf("entry %d follows entry %d", e.Entry, number-1)
			}
			if seen[e.ID] != 0 {
				t.Errorf("%s is entry %d and %d", e.ID, seen[e.ID], e.Entry)
			}
			writer, _, _ := strings.Cut(e.ID, ":")
			if e.ID <= lastOf[writer] {
				t.Errorf("%s comes after %s", e.ID, lastOf[writer])
			}
			if !bytes.HasPrefix(e.Payload, []byte(e.ID)) {
				t.Errorf("entry %s has the payload %q", e.ID, e.Payload)
			}
			seen[e.ID], lastOf[writer] = e.Entry, e.ID
			order = append(order, e.ID)
		}
		if after = page.Cursor; len(page.Entries) == 0 {
			break
		}
	}
	caughtUp <- after
	acknowledged := 0
	for _, ids := range told {
		for id, n := range ids {
			if acknowledged++; seen[id] != n {
				t.Errorf("%s was acknowledged as entry %d, and is %d", id, n, seen[id])
			}
		}
	}
	if got := <-followed; strings.Join(got, " ") != strings.Join(order, " ") {
		t.Errorf("the reader that followed saw %d entries, not the %d of the log", len(got), len(order))
	}
	t.Logf("%d kills, %d entries, %d acknowledged", rounds, len(order), acknowledged)
	if acknowledged == 0 {
		t.Error("nothing was acknowledged")
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, p.stderr)
	}
}

// The program's own commands against a manager.
func TestCommandsUseLogs(t *testing.T) {
	for _, engine := range []string{"wal", "sqlite"} {
		t.Run(engine, func(t *testing.T) { testLogsCommand(t, engine) })
	}
}

func testLogsCommand(t *testing.T, engine string) {
	p := startManager(t, "--store", engine, "--data-dir", t.TempDir(), "--max-logs", "1")
	bin, err := managerBinary()
	if err != nil {
		t.Fatal(err)
	}
	run := func(input string, args ...string) string {
		cmd := exec.Command(bin, append(append([]string{"logs"}, args...), "--manager", "http://"+p.addr["api"])...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%d: %s", cmd.ProcessState.ExitCode(), out)
		}
		return string(out)
	}
	for _, c := range []struct{ input, args, want string }{
		{"", "append events --payload x", "1: oncegate logs: append: "},
		{"", "append events --payload hello --create", "1/1 5d41402abc4b2a76b9719d911017c592\n"},
		{"hello", "append events", "1/1 5d41402abc4b2a76b9719d911017c592 (was there)\n"},
		{"a\nb\na\n", "append events --lines --writer w", "1/2 0cc175b9c0f1b6a831c399e269772661\n1/3 92eb5ffee6ae2fec3ad71c777531578f\n1/2 0cc175b9c0f1b6a831c399e269772661 (was there)\n"},
		{"", "tail events --after 1", "1/2\t0cc175b9c0f1b6a831c399e269772661\ta\n1/3\t92eb5ffee6ae2fec3ad71c777531578f\tb\n"},
		{"", "inspect events", "log        events\nidentity   ids\nentries    1 to 3\nwindow     5m0s, 3 of 1000000 ids"},
		{"", "inspect events --id 0cc175b9c0f1b6a831c399e269772661 --json", `{"segment":1,"entry":2,"id":"0cc175b9c0f1b6a831c399e269772661","payload":"YQ==","properties":{}}`},
		{"", "list", "LOG     IDENTITY  FIRST  LAST  KEYS  WRITERS  DISK BYTES  STATE\nevents  ids       1      3     3     1"},
		{"", "append other --payload x --create", "1: oncegate logs: append: manager: too-many-logs: "},
		{"", "append .bad --payload x", "2: oncegate logs: append: log: \".bad\": must be 1 to 128"},
		{"", "writers events", "WRITER  EPOCH\nw       1\n"},
		{"", "writers events --remove w", ""},
		{"", "writers events --remove w", "1: oncegate logs: writers: manager: not-found: "},
		{"", "writers events --json", `{"writers":[],"cursor":""}`},
		{"", "append events --lines --id x", "2: oncegate logs: "},
		{"", "tail events --after x", "2: oncegate logs: tail: "},
	} {
		if got := run(c.input, strings.Fields(c.args)...); !strings.HasPrefix(got, c.want) {
			t.Errorf("logs %s: %q, want %q", c.args, got, c.want)
		}
	}
}
