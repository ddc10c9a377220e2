package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/client"
)

// TestLogsSurviveCrashes kills the real program again and again while writers append, alone and in
// batches. What was acknowledged is in the log once, at the number that its writer got, and each writer's
// messages are in its order. A reader that follows meanwhile sees the same entries. The log is shipped to a store with
// every kind of fault, and what is restored from it, at times and at the end, is how the log begins.
func TestLogsSurviveCrashes(t *testing.T) {
	t.Parallel()
	const writers, underWay = 12, 8
	m := &movingManager{next: &http.Transport{MaxIdleConnsPerHost: 64}, addrs: make([]atomic.Pointer[string], 1)}
	defer m.next.CloseIdleConnections()
	srv, bucket, env := newBucket(t)
	srv.Default()
	dir := t.TempDir()
	var p *process
	start := func() {
		p = env.startManager(t, "--data-dir", dir, "--ship-to", shipBucket, "--ship-interval-seconds", "0.05")
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
	rounds := crashRounds(t, 2, 4)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(rounds)*10*time.Second)
	defer cancel()
	if _, err := l.Create(ctx, client.LogConfig{}); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var answered atomic.Int64
	acked := make([]map[string]uint64, writers)
	var wg sync.WaitGroup
	for i := range writers {
		acked[i] = make(map[string]uint64)
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
					acked[i][r.ID] = r.LogMessageID.Entry
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
	restoreEvery := max(4, rounds/10)
	var restored []string
	for round := range rounds {
		enough := answered.Load() + 1 + rand.Int64N(500)
		waitFor(t, "entries are acknowledged", func() bool { return answered.Load() >= enough || t.Failed() })
		if round%restoreEvery == restoreEvery-1 {
			before := nextMillisecond(t)
			commitKey(t, p.addr["api"], fmt.Sprint("round-", round)) // the ledger has a newer time as well
			shippedAfter(t, bucket, before)
		}
		p.kill()
		if round%restoreEvery == restoreEvery-1 {
			restored = append(restored, restoreHere(t, env))
		}
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
	for _, ids := range acked {
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
	before := nextMillisecond(t)
	mustAnswer(t, 201, "POST", "http://"+p.addr["api"]+"/v1/logs/events/entries", entryJSON("end"))
	order = append(order, "end")
	commitKey(t, p.addr["api"], "end")
	shippedAfter(t, bucket, before)
	p.kill()
	for i, dir := range append(restored, restoreHere(t, env)) {
		ids := idsOf(t, dir)
		if len(ids) == 0 || len(ids) > len(order) || strings.Join(ids, " ") != strings.Join(order[:len(ids)], " ") {
			t.Errorf("the %d entries that were restored are not how the log of %d begins", len(ids), len(order))
		}
		if i == len(restored) && len(ids) != len(order) {
			t.Errorf("%d of %d entries were restored at the end", len(ids), len(order))
		}
	}
	t.Logf("%d restores, %d faults of %d requests", 1+len(restored), srv.Injected.Load(), srv.Requests.Load())
}

// restoreHere restores what was shipped into a new directory.
func restoreHere(t *testing.T, env environ) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "restored")
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", dir, "--quarantine", "0s"); code != 0 {
		t.Fatalf("restore: %d %s", code, out)
	}
	return dir
}

// idsOf reads the ids of the log "events" in a directory, by a manager of its own.
func idsOf(t *testing.T, dir string) (ids []string) {
	t.Helper()
	p := startManager(t, "--data-dir", dir)
	defer p.kill()
	for after := ""; ; {
		page := mustAnswer(t, 200, "GET", "http://"+p.addr["api"]+"/v1/logs/events/entries?limit=1000&after="+after, "")
		entries := gjson.Get(page, "entries.#.id").Array()
		if len(entries) == 0 {
			return ids
		}
		for _, id := range entries {
			ids = append(ids, id.String())
		}
		after = gjson.Get(page, "cursor").String()
	}
}

// The program's own commands against a manager.
func TestCommandsUseLogs(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"wal", "sqlite"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			testLogsCommand(t, engine)
		})
	}
}

func testLogsCommand(t *testing.T, engine string) {
	p := startManager(t, "--store", engine, "--data-dir", t.TempDir(), "--max-logs", "1")
	run := func(input string, args ...string) string {
		cmd := environ(nil).command(t, append(append([]string{"logs"}, args...), "--manager", "http://"+p.addr["api"])...)
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
	if got := run("", "inspect", "events"); !strings.HasSuffix(got, "\nstate      ok\n") {
		t.Errorf("logs inspect events: %q", got)
	}
}
