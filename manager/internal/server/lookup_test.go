package server

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// A look-up returns what became of a key, in both forms, and reserves nothing.
func TestLookUpTellsWhatBecameOfAKey(t *testing.T) {
	s := newRoleSite(t, "gate")
	post := func(path, body string) string {
		t.Helper()
		a := s.Do("POST", path, "application/json", body, "authorization", "Bearer "+tokenFor("gate"))
		return strings.TrimSpace(a.Body)
	}
	const look = `{"key":"a b","scope":"s"}`
	for range 2 {
		if got := post(api.PathLookUp, look); got != `{"state":"none"}` {
			t.Fatalf("unknown: %s", got)
		}
	}
	post(api.PathReserve, `{"key":"a b","scope":"s","token":"t"}`)
	if got := post(api.PathLookUp, look); !strings.HasPrefix(got, `{"state":"pending"`) {
		t.Errorf("pending: %s", got)
	}
	post(api.PathCommit, `{"key":"a b","scope":"s","token":"t","result":{"status":201,"body":"YQ=="}}`)
	if got := post(api.PathLookUp, look); !strings.HasPrefix(got, `{"state":"committed"`) || !strings.Contains(got, `"body":"YQ=="`) {
		t.Errorf("committed: %s", got)
	}
	if got := post(api.PathLookUp, `{"key":"a b","scope":"other"}`); got != `{"state":"none"}` {
		t.Errorf("another scope: %s", got)
	}
	raw := (&api.ReleaseRequest{Key: "a b", Scope: "s"}).AppendRaw(nil)
	a := s.Do("POST", api.PathLookUp, api.ContentTypeRaw, string(raw), "authorization", "Bearer "+tokenFor("gate"))
	var reply api.ReserveReply
	if err := reply.ParseRaw([]byte(a.Body)); err != nil || reply.State != api.StateCommitted || string(reply.Result.Body) != "a" {
		t.Errorf("raw: %d %v %+v", a.Status, err, reply)
	}
	for _, bad := range []string{`{}`, `{"key":" a"}`, `{"key":"k","wait_ms":1}`, `[]`} {
		if got := post(api.PathLookUp, bad); !strings.Contains(got, `"code":"invalid-`) {
			t.Errorf("%s: %s", bad, got)
		}
	}
}
