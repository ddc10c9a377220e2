package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/ship"
)

func do(t *testing.T, method, url, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b.String()
}

func entryJSON(id string) string {
	return fmt.Sprintf(`{"id":%q,"payload":%q}`, id, base64.StdEncoding.EncodeToString([]byte(id)))
}

// mustAnswer makes a call that must have the status.
func mustAnswer(t *testing.T, want int, method, url, body string) string {
	t.Helper()
	status, _, answer := do(t, method, url, body)
	if status != want {
		t.Fatalf("%s %s: %d %s, want %d", method, url, status, answer, want)
	}
	return answer
}

// shippedAfter waits until the bucket has a time after t0 to restore to, and returns the newest one.
func shippedAfter(t *testing.T, bucket object.Store, t0 time.Time) (newest time.Time) {
	t.Helper()
	waitFor(t, "what was acknowledged is shipped", func() bool {
		st, err := ship.ReadStatus(t.Context(), bucket)
		if err != nil {
			return false
		}
		newest = st.Newest
		return newest.After(t0)
	})
	return newest
}

// TestRestoreOfLogs ships the logs of a real manager, and restores them: after a kill, to a time before
// entries came and a log was deleted, and with a damaged object.
func TestRestoreOfLogs(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	dir := t.TempDir()
	p := env.startManager(t, "--data-dir", dir, "--ship-to", shipBucket, "--ship-interval-seconds", "0.05")
	at := func(p *process, path string) string { return "http://" + p.addr["api"] + "/v1/logs" + path }
	mustAnswer(t, 201, "PUT", at(p, "/events"), `{}`)
	mustAnswer(t, 201, "PUT", at(p, "/counted"), `{"identity":"structured"}`)
	mustAnswer(t, 201, "PUT", at(p, "/dropped"), `{"window_ms":3600000}`)
	nonce := "0123456789abcdef"
	openWriter := func(p *process, name string) int64 {
		return gjson.Get(mustAnswer(t, 201, "POST", at(p, "/"+name+"/writers"), `{"writer":"w"}`), "epoch").Int()
	}
	stays := openWriter(p, "events")
	for i := range 3 {
		mustAnswer(t, 201, "POST", at(p, "/events/entries"), entryJSON(fmt.Sprint("early-", i)))
		mustAnswer(t, 201, "POST", at(p, "/counted/entries"), entryJSON(fmt.Sprintf("c:%d:%s", i, nonce)))
	}
	mustAnswer(t, 201, "POST", at(p, "/dropped/entries"), entryJSON("lost"))
	// After the first markers there is a time with all that came before, and after the second ones
	// nothing is added to it.
	marks := 0
	mark := func(t0 time.Time) time.Time {
		id := fmt.Sprint("marker-", marks)
		mustAnswer(t, 201, "POST", at(p, "/events/entries"), entryJSON(id))
		mustAnswer(t, 201, "POST", at(p, "/dropped/entries"), entryJSON(id))
		mustAnswer(t, 201, "POST", at(p, "/counted/entries"), entryJSON(fmt.Sprintf("c:%d:%s", 3+marks, nonce)))
		commitKey(t, p.addr["api"], id)
		marks++
		return shippedAfter(t, bucket, t0)
	}
	then := mark(nextMillisecond(t))
	for time.Now().UnixMilli() <= then.UnixMilli() {
		nextMillisecond(t)
	}
	mark(then)
	mustAnswer(t, 200, "DELETE", at(p, "/dropped"), "")
	mustAnswer(t, 201, "POST", at(p, "/events/entries"), entryJSON("late"))
	forgotten := openWriter(p, "events")
	mustAnswer(t, 201, "POST", at(p, "/counted/entries"), entryJSON("c:5:"+nonce))
	mustAnswer(t, 201, "PUT", at(p, "/fresh"), `{}`)
	mustAnswer(t, 201, "POST", at(p, "/fresh/entries"), entryJSON("f"))
	forgotten = max(forgotten, openWriter(p, "fresh"), openWriter(p, "fresh"))
	before := nextMillisecond(t)
	commitKey(t, p.addr["api"], "last")
	shippedAfter(t, bucket, before)
	p.kill()

	newest := filepath.Join(t.TempDir(), "newest")
	code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", newest, "--quarantine", "0s")
	if code != 0 || !strings.Contains(out, "is shorter than 1h0m0s, for which logs remembered ids") {
		t.Fatalf("restore: %d %s", code, out)
	}
	if code, out := env.oncegate(t, "wal", "verify", "--data-dir", newest); code != 0 || !strings.HasPrefix(out, "ok: ") || strings.Count(out, "\n") != 1 {
		t.Errorf("wal verify: %d %s", code, out)
	}
	q := env.startManager(t, "--data-dir", newest)
	for i, id := range []string{"early-0", "early-1", "early-2", "marker-0", "marker-1", "late"} {
		if answer := mustAnswer(t, 200, "POST", at(q, "/events/entries"), entryJSON(id)); gjson.Get(answer, "entry").Int() != int64(i+1) {
			t.Errorf("%s: %s", id, answer)
		}
	}
	mustAnswer(t, 200, "POST", at(q, "/fresh/entries"), entryJSON("f"))
	mustAnswer(t, 404, "GET", at(q, "/dropped"), "")
	mustAnswer(t, 201, "POST", at(q, "/events/entries"), entryJSON("next")) // there is no quarantine
	if code := q.stop(t); code != 0 {
		t.Errorf("exit code %d: %s", code, q.stderr)
	}

	older := filepath.Join(t.TempDir(), "older")
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", older, "--at", then.UTC().Format(time.RFC3339Nano)); code != 0 ||
		!strings.Contains(out, "its logs refuse unknown ids for the first 1h0m0s") {
		t.Fatalf("restore: %d %s", code, out)
	}
	for i := range 2 { // the quarantine outlives restarts
		q = env.startManager(t, "--data-dir", older)
		mustAnswer(t, 200, "POST", at(q, "/dropped/entries"), entryJSON("lost"))
		mustAnswer(t, 200, "POST", at(q, "/events/entries"), entryJSON("early-1"))
		mustAnswer(t, 200, "POST", at(q, "/counted/entries"), entryJSON("c:2:"+nonce))
		mustAnswer(t, 201, "POST", at(q, "/events/entries"), `{"payload":"eA=="}`) // it has no id to be known by
		if status, _, body := do(t, "PUT", at(q, "/fresh"), `{}`); status != 201 && status != 200 {
			t.Errorf("make log: %d %s", status, body)
		}
		if i == 0 {
			mustAnswer(t, 201, "POST", at(q, "/events/entries"), fmt.Sprintf(`{"payload":"eA==","writer":"w","epoch":%d}`, stays))
		}
		for _, name := range []string{"events", "fresh", "dropped"} {
			if epoch := openWriter(q, name); epoch <= max(stays, forgotten)+int64(i) || epoch >= 1<<53 {
				t.Errorf("%s gives a writer the epoch %d again, or one that a client cannot read", name, epoch)
			}
		}
		for name, id := range map[string]string{"events": "late", "counted": "c:5:" + nonce, "fresh": "f"} {
			status, header, body := do(t, "POST", at(q, "/"+name+"/entries"), entryJSON(id))
			if status != 503 || gjson.Get(body, "code").String() != "quarantine" || header.Get("Retry-After") == "" {
				t.Errorf("an id that %s forgot: %d %s, Retry-After %q", name, status, body, header.Get("Retry-After"))
			}
		}
		if status, _, body := do(t, "POST", at(q, "/events/entries"), `{"payload":"bGF0ZQ==","derive":"md5"}`); status != 503 {
			t.Errorf("a derived id that was forgotten: %d %s", status, body)
		}
		if code := q.stop(t); code != 0 {
			t.Errorf("exit code %d: %s", code, q.stderr)
		}
	}

	// Damage: of a file on disk, and of objects.
	file := damageFile(t, filepath.Join(newest, "*.wal"), "early-1")
	if code, out := env.oncegate(t, "wal", "verify", "--data-dir", newest); code != 1 || !strings.Contains(out, file) {
		t.Errorf("wal verify: %d %s", code, out)
	}
	if err := object.All(t.Context(), bucket, "ledger/", func(o object.Info) error {
		b, v, err := bucket.Get(t.Context(), o.Name)
		if err == nil {
			b[len(b)-2] ^= 1
			_, err = bucket.Replace(t.Context(), o.Name, b, v)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", filepath.Join(t.TempDir(), "new")); code != 1 || !strings.Contains(out, "object ledger/") || strings.Count(out, "\n") != 1 {
		t.Errorf("damaged objects: exit code %d; %s", code, out)
	}
}

// TestNoEpochTwiceWithAClockBehind: the machine that restores has a clock six hours behind that of the one that
// restored before. The epoch that was given out after the point in time is not given out again.
func TestNoEpochTwiceWithAClockBehind(t *testing.T) {
	t.Parallel()
	_, bucket, env := newBucket(t)
	dir := t.TempDir()
	ahead := uint64(time.Now().Add(6*time.Hour).Unix()) << 20
	if err := quarantine.Write(dir, quarantine.Record{EpochFloor: ahead}); err != nil {
		t.Fatal(err)
	}
	p := env.startManager(t, "--data-dir", dir, "--ship-to", shipBucket, "--ship-interval-seconds", "0.05")
	at := func(p *process, path string) string { return "http://" + p.addr["api"] + "/v1/logs" + path }
	openWriter := func(p *process) uint64 {
		return gjson.Get(mustAnswer(t, 201, "POST", at(p, "/events/writers"), `{"writer":"w"}`), "epoch").Uint()
	}
	mustAnswer(t, 201, "PUT", at(p, "/events"), `{}`)
	if early := openWriter(p); early <= ahead {
		t.Fatalf("the first epoch is %d, not above %d", early, ahead)
	}
	before := nextMillisecond(t)
	commitKey(t, p.addr["api"], "early")
	then := shippedAfter(t, bucket, before)
	for time.Now().UnixMilli() <= then.UnixMilli() {
		nextMillisecond(t)
	}
	var late uint64
	for range 3 {
		late = openWriter(p)
	}
	p.kill()
	restored := filepath.Join(t.TempDir(), "restored")
	if code, out := env.oncegate(t, "restore", "--from", shipBucket, "--data-dir", restored, "--at", then.UTC().Format(time.RFC3339Nano)); code != 0 {
		t.Fatalf("restore: %d %s", code, out)
	}
	q := env.startManager(t, "--data-dir", restored)
	if epoch := openWriter(q); epoch <= late || epoch >= 1<<53 {
		t.Errorf("the writer got epoch %d, then %d after a restore", late, epoch)
	}
}
