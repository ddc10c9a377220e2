package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

// An operator sees who a ledger is, and when it has nothing any more that others own; submissions do
// not count, for nobody asks elsewhere for them.
func TestOperatorSeesWhichLedgerItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startManager(t, "--data-dir", dir, "--shard", "A", "--shards", "A")
	moved := 0
	for i := range 50 {
		key := fmt.Sprint("k", i)
		if status, body := post(t, p.addr["api"], api.PathReserve, `{"key":"`+key+`","token":"t"}`); status != 201 {
			t.Fatalf("%d %s", status, body)
		}
		moved += api.Owner([]string{"A", "B"}, "", key)
	}
	p.kill()
	p = startManager(t, "--data-dir", dir, "--shard", "A", "--shards", "A,B", "--admin", "127.0.0.1:0")
	url := "http://" + p.addr["api"]
	c, err := client.New(client.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		s := client.Submission{Function: "f"}
		s.IdempotencyKey = fmt.Sprint("job", i)
		if _, err := c.SubmitIdempotent(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	code, out := oncegate(t, "ledger", "shard", "--manager", url)
	want := fmt.Sprintf("LEDGER SHARD SHARDS VERSION MOVED PENDING COMMITTED REJECTED UNKNOWN\nID A A,B 2 %d %d 0 0 0\n", moved, moved)
	got := regexp.MustCompile(`[0-9a-f]{32}`).ReplaceAllString(regexp.MustCompile(` +`).ReplaceAllString(out, " "), "ID")
	if code != 0 || got != want || moved == 0 {
		t.Errorf("%d\n%s, want\n%s", code, got, want)
	}
	code, out = oncegate(t, "ledger", "shard", "--json", "--manager", url)
	var s admin.Shard
	if err := json.Unmarshal([]byte(out), &s); code != 0 || err != nil || s.Moved.Pending != moved || s.Name != "A" || len(s.Shards) != 2 {
		t.Errorf("%d %v %s", code, err, out)
	}
	waitFor(t, "the metric has them", func() bool {
		_, text := get(t, p.addr["admin"], "/metrics")
		return strings.Contains(text, fmt.Sprintf(`oncegate_ledger_moved_entries{state="pending"} %d`, moved))
	})
}
