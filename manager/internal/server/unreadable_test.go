package server

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/schedules"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/store/unread"
)

// Everybody may look at records that cannot be read, only
// administrators delete one, and no other record is deleted.
func TestOnlyAdministratorsDeleteUnreadableRecords(t *testing.T) {
	const gate, admin = "gates-token-of-20-bytes", "admins-token-of-20-bytes"
	auth := tokens(t, gate, admin)
	st, tracker := mem.New(mem.Options{}), unread.New()
	l, err := ledger.New(st, ledger.Options{Unreadable: tracker})
	if err != nil {
		t.Fatal(err)
	}
	q, err := jobs.New(st, jobs.Options{Unreadable: tracker})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	timed, err := schedules.New(st, q, schedules.Options{Unreadable: tracker})
	if err != nil {
		t.Fatal(err)
	}
	// Keys may hold anything, and sort keys what an edit from outside left there.
	odd := "odd\xff\x00\"key"
	err = st.Update(t.Context(), func(tx store.Tx) error {
		for key, index := range map[string]string{odd: "queued", "bad": "done"} {
			if err := tx.Put("jobs", key, []byte{99}, store.Entry{Index: index, SortKey: "\xff"}, store.Entry{Index: "function", SortKey: "no function"}); err != nil {
				return err
			}
		}
		if err := tx.Put("job_blobs", "bad/p", []byte("1")); err != nil {
			return err
		}
		if err := tx.Put("job_control", "functions", []byte{99}); err != nil {
			return err
		}
		if err := tx.Put("schedules", "nightly", []byte{99}, store.Entry{Index: "name", SortKey: "nightly"}); err != nil {
			return err
		}
		return tx.Put("ledger", "1:sbad", []byte{99}, store.Entry{Index: "pending", SortKey: ""})
	})
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{store: st, server: Options{Options: httpd.Options{Auth: auth}, Unreadable: tracker}, routes: append(
		UnreadableRoutes(st, l, q, timed, tracker), JobRoutes(l, q)...)})
	as := func(token, method, target, body string) httpdtest.Answer {
		return s.Do(method, target, "application/json", body, "authorization", "Bearer "+token)
	}
	list := func() map[string]string {
		t.Helper()
		found := make(map[string]string)
		cursor := ""
		for more := true; more; more = cursor != "" {
			a := as(gate, "GET", "/v1/unreadable?limit=1&cursor="+cursor, "")
			var page struct {
				Records []struct{ Collection, ID, Key, Reason string }
				Cursor  string
			}
			if err := json.Unmarshal([]byte(a.Body), &page); err != nil || a.Status != 200 {
				t.Fatalf("%d %s: %v", a.Status, a.Body, err)
			}
			for _, r := range page.Records {
				key, err := base64.RawURLEncoding.DecodeString(r.ID)
				if err != nil || r.Reason == "" {
					t.Errorf("%+v: %v", r, err)
				}
				found[r.Collection+" "+string(key)] = r.ID
			}
			cursor = page.Cursor
		}
		return found
	}
	if found := list(); len(found) != 4 {
		t.Errorf("found %q", found)
	}
	if a := as(gate, "POST", "/v1/functions/f/pause", ""); a.Status != 500 || !strings.Contains(a.Body, `"code":"record-unreadable"`) || !strings.Contains(a.Body, "functions") {
		t.Errorf("pause: %d %s", a.Status, a.Body)
	}
	found := list() // that one is known now
	for _, want := range []string{"ledger 1:sbad", "jobs bad", "jobs " + odd, "job_control functions", "schedules nightly"} {
		if found[want] == "" {
			t.Errorf("%q is not found among %q", want, found)
		}
	}
	for target, status := range map[string]int{
		"?limit=&cursor=": 200, "?limit=0": 400, "?limit=1001": 400, "?limit=x": 400, "?cursor=!": 400, "?cursor=" + base64.RawURLEncoding.EncodeToString([]byte{200}): 400, "?other=1": 400,
	} {
		if a := as(gate, "GET", "/v1/unreadable"+target, ""); a.Status != status {
			t.Errorf("%s: %d %s", target, a.Status, a.Body)
		}
	}
	remove := func(token string, want int, c, id string) {
		t.Helper()
		if a := as(token, "DELETE", "/v1/unreadable/"+c+"/"+id, ""); a.Status != want {
			t.Errorf("delete %s %s: %d %s, want %d", c, id, a.Status, a.Body, want)
		}
	}
	id := func(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }
	remove(gate, 403, "jobs", id("bad"))
	remove(admin, 404, "jobs", id("none"))
	remove(admin, 404, "ledger", id("1:snone"))
	remove(admin, 404, "schedules", id("none"))
	remove(admin, 400, "nowhere", id("bad"))
	remove(admin, 400, "jobs", "!")
	remove(admin, 400, "jobs", id(strings.Repeat("k", store.MaxKeyBytes+1)))
	if a := as(gate, "POST", "/v1/jobs", `{"function":"f","id":"good"}`); a.Status != 202 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	remove(admin, 409, "jobs", id("good"))
	s.wantAudited()
	for name, id := range found {
		c, _, _ := strings.Cut(name, " ")
		remove(admin, 200, c, id)
	}
	if n := strings.Count(s.log.String(), `msg="unreadable record deleted by an administrator"`); n != 5 {
		t.Errorf("%d deletions are audited: %s", n, s.log)
	}
	if found := list(); len(found) != 0 {
		t.Errorf("left are %q", found)
	}
	if n, err := st.Len(t.Context(), "job_blobs", ""); n != 0 || err != nil {
		t.Errorf("%d values of a deleted job are left, %v", n, err)
	}
	if a := as(gate, "POST", "/v1/ledger/reserve", `{"key":"bad","scope":"s","token":"t"}`); a.Status != 201 {
		t.Errorf("the key of a deleted entry: %d %s", a.Status, a.Body)
	}
	if strings.Contains(s.log.String(), "request failed") {
		t.Errorf("a record that cannot be read is logged with each call: %s", s.log)
	}
	if len(tracker.Known()) != 0 {
		t.Errorf("still known: %v", tracker.Known())
	}
}

// A call that meets an unreadable record of a log points to the list, and the list has it.
func TestUnreadableLogRecordsAreListed(t *testing.T) {
	st, tracker := mem.New(mem.Options{}), unread.New()
	engine, err := storelogs.Open(t.Context(), st, storelogs.Options{Unreadable: tracker})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	check := func(tx store.Tx, c store.Collection, key string) (bool, error) {
		return storelogs.Owns(c), storelogs.CheckStored(tx, c, key)
	}
	s := newSite(t, siteOptions{store: st, server: Options{Unreadable: tracker},
		routes: append(UnreadableRoutes(st, nil, nil, nil, tracker, check), LogRoutes(engine)...)})
	s.want("201 ...", "PUT", "/v1/logs/l", "")
	s.want("201 ...", "POST", "/v1/logs/l/entries", `{"payload":"eA=="}`)
	if err := st.Update(t.Context(), func(tx store.Tx) error {
		hits, err := tx.Scan("log_entries", "log", store.Range{Limit: 1})
		if err != nil {
			return err
		}
		if err := tx.Put("log_heads", "bad", []byte("{"), store.Entry{Index: "log", SortKey: "bad"}); err != nil {
			return err
		}
		return tx.Put("log_entries", hits[0].Key, []byte{99}, store.Entry{Index: "log", SortKey: hits[0].SortKey})
	}); err != nil {
		t.Fatal(err)
	}
	s.want("500 record-unreadable: ...", "GET", "/v1/logs/l/entries", "")
	s.want("500 record-unreadable: ...", "GET", "/v1/logs/bad", "")
	a := s.JSON("GET", "/v1/unreadable", "")
	if strings.Count(a.Body, `"collection":"log_entries"`) != 1 || strings.Count(a.Body, `"collection":"log_heads"`) != 1 {
		t.Errorf("the list has %s", a.Body)
	}
	s.want("400 invalid-request: collection: ...", "DELETE", "/v1/unreadable/log_heads/YmFk", "")
	// An administrator gives up the log.
	s.want("200 ...", "DELETE", "/v1/logs/bad", "")
	s.want("404 ...", "GET", "/v1/logs/bad", "")
	if a := s.JSON("GET", "/v1/unreadable", ""); strings.Contains(a.Body, `"collection":"log_heads"`) {
		t.Errorf("the list still has %s", a.Body)
	}
	// A head of which the key of the log can be read takes the entries with it.
	if err := st.Update(t.Context(), func(tx store.Tx) error {
		head, err := tx.Get("log_heads", "l")
		if err != nil {
			return err
		}
		return tx.Put("log_heads", "l", bytes.Replace(head, []byte(`"version":1`), []byte(`"version":9`), 1), store.Entry{Index: "log", SortKey: "l"})
	}); err != nil {
		t.Fatal(err)
	}
	s.want("500 record-unreadable: ...", "GET", "/v1/logs/l", "")
	s.want("200 ...", "DELETE", "/v1/logs/l", "")
	s.want("404 ...", "DELETE", "/v1/logs/l", "")
	if n, err := st.Len(t.Context(), "log_graves", ""); err != nil || n != 1 {
		t.Errorf("%d graves, %v", n, err)
	}
	s.want("201 ...", "PUT", "/v1/logs/l", "")
}
