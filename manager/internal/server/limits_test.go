package server

import (
	"fmt"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/ledger"
)

func TestLimits(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	if a := j.text("PUT", "/v1/functions/f", `{"max_running":3,"max_running_per_key":2,"rate":{"count":100,"per_ms":60000}}`); a != `{"name":"f","limits":{"max_running":3,"max_running_per_key":2,"rate":{"count":100,"per_ms":60000}}}` {
		t.Errorf("set %s", a)
	}
	if a := j.text("GET", "/v1/functions", ""); !strings.Contains(a, `"limits":{"max_running":3,"max_running_per_key":2,"rate":{"count":100,"per_ms":60000}}`) {
		t.Errorf("listed %s", a)
	}
	for i := range 3 {
		for _, key := range []string{"a", "b"} {
			s := j.call(202, "POST", "/v1/jobs", fmt.Sprintf(`{"function":"f","id":"%s%d","concurrency_key":"%s"}`, key, i, key))
			if s["concurrency_key"] != key {
				t.Errorf("submitted %v", s)
			}
		}
	}
	claimed := j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w","functions":["f"],"limit":10}`)["jobs"].([]any)
	var order []string
	for _, c := range claimed {
		order = append(order, c.(map[string]any)["id"].(string))
	}
	if got := strings.Join(order, " "); got != "a0 b0 a1" {
		t.Errorf("claimed %s", got)
	}
	if a := j.text("PUT", "/v1/functions/f", `{"max_running":null,"rate":null}`); a != `{"name":"f"}` {
		t.Errorf("removed %s", a)
	}
	if n := len(j.call(200, "POST", "/v1/jobs/claim", `{"worker":"w","limit":10}`)["jobs"].([]any)); n != 3 {
		t.Errorf("%d jobs are left", n)
	}
	for field, body := range map[string]string{
		"max_running": `{"max_running":0}`, "max_running_per_key": `{"max_running_per_key":1000001}`, "rate.count": `{"rate":{"per_ms":1}}`,
		"rate.per_ms": `{"rate":{"count":1}}`, "burst": `{"burst":1}`,
	} {
		j.wantField(field, "PUT", "/v1/functions/f", body)
	}
	j.wantField("rate.count", "PUT", "/v1/functions/f", `{"rate":{}}`)
	j.wantField("function", "PUT", "/v1/functions/a%20b", `{}`)
	j.wantField("concurrency_key", "POST", "/v1/jobs", `{"function":"f","concurrency_key":""}`)
}
