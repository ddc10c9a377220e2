package server

import (
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

func TestDeadlines(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	s := j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"a","expires_in_ms":60000,"on_expiry":"dead_letter","timeout_ms":90000}`)
	created, err := time.Parse(time.RFC3339Nano, s["created_at"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if at, _ := time.Parse(time.RFC3339Nano, s["expires_at"].(string)); at.Sub(created) != time.Minute || s["on_expiry"] != "dead_letter" || s["timeout_ms"] != 90000.0 {
		t.Errorf("submitted %v", s)
	}
	_, token, claimed := j.claimOne()
	if claimed["timeout_ms"] != 90000.0 || claimed["lease"].(map[string]any)["expires_in_ms"] != 60000.0 {
		t.Errorf("claimed %v", claimed)
	}
	if beat := j.call(200, "POST", "/v1/jobs/a/heartbeat", `{"lease_token":"`+token+`","lease_ms":600000}`); beat["expires_in_ms"].(float64) > 90000 {
		t.Errorf("heartbeat %v", beat)
	}
	j.store.offset.Add(int64(2 * time.Minute))
	if detail := j.wantCode(409, api.CodeFenced, "POST", "/v1/jobs/a/heartbeat", `{"lease_token":"`+token+`"}`); detail != "the attempt at job a has reached its timeout of 1m30s" {
		t.Errorf("heartbeat after the timeout: %s", detail)
	}
	if _, err := j.queue.RunDuties(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := j.call(200, "GET", "/v1/jobs/a", ""); a["state"] != "failed" || a["attempt"] != 1.0 { // it has expired as well
		t.Errorf("after the timeout: %v", a)
	}
	j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"b","expires_at":"2020-01-02T03:04:05Z"}`)
	if _, err := j.queue.RunDuties(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b := j.call(200, "GET", "/v1/jobs/b?wait_ms=60000", ""); b["state"] != "expired" || b["on_expiry"] != nil || b["error"] != "it expired at 2020-01-02T03:04:05Z" {
		t.Errorf("expired: %v", b)
	}
	counted := j.call(200, "GET", "/v1/jobs/stats", "")["calls"].(map[string]any)
	if counted["expired"] != 2.0 || counted["timed_out"] != 1.0 {
		t.Errorf("counted %v", counted)
	}
	for field, body := range map[string]string{
		"expires_in_ms": `"expires_in_ms":0`, "expires_at": `"expires_at":"2020-01-02T03:04:05Z","delay_ms":1000`, "on_expiry": `"on_expiry":"dead_letter"`,
		"timeout_ms": `"timeout_ms":99`,
	} {
		j.wantField(field, "POST", "/v1/jobs", `{"function":"f",`+body+`}`)
	}
	j.wantField("on_expiry", "POST", "/v1/jobs", `{"function":"f","expires_in_ms":1,"on_expiry":"run"}`)
}
