package openapitest

import (
	"net/http"
	"strings"
	"testing"
)

func TestCheckReportsWhatTheDescriptionDoesNotSay(t *testing.T) {
	d, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	const request = `{"key":"k","token":"t"}`
	problem := func(status, code string) string {
		return `{"type":"urn:oncegate:problem:x","title":"X","status":` + status + `,"code":"` + code + `"}`
	}
	for _, c := range []struct {
		name, path, request string
		status              int
		media, answer       string
		want                string // part of the error, nothing for an exchange that is right
	}{
		{"right", "/v1/ledger/reserve", request, 201, "application/json", `{"state":"reserved","token":"t","expires_in_ms":1}`, ""},
		{"refused", "/v1/ledger/reserve", `{}`, 400, "application/problem+json", problem("400", "invalid-request"), ""},
		{"code", "/v1/ledger/reserve", `{}`, 400, "application/problem+json", problem("400", "fenced"), `code "fenced" is not among`},
		{"status", "/v1/ledger/reserve", request, 418, "application/problem+json", problem("418", "x"), "418 is not declared"},
		{"state", "/v1/ledger/reserve", request, 201, "application/json", `{"state":"held"}`, "/state"},
		{"member of an answer", "/v1/ledger/reserve", request, 201, "application/json", `{"state":"reserved","since":1}`, "since"},
		{"type of an answer", "/v1/ledger/reserve", request, 201, "text/html", `{"state":"reserved"}`, "text/html"},
		{"member of a request", "/v1/ledger/reserve", `{"key":"k","token":"t","x":1}`, 201, "application/json", `{"state":"reserved"}`, "accepted"},
		{"query", "/v1/ledger/reserve?x=1", request, 201, "application/json", `{"state":"reserved"}`, `"x" is not declared`},
		{"path", "/v1/nothing", "{}", 200, "application/json", `{}`, "not described"},
		{"path that is refused", "/v1/nothing", "{}", 404, "application/problem+json", problem("404", "not-found"), ""},
		{"literal before parameter", "/v1/jobs/claim", `{"worker":"w"}`, 200, "application/json", `{"jobs":[]}`, ""},
	} {
		err := d.Check(&Exchange{
			Method: "POST", Path: c.path, RequestType: "application/json", Request: c.request,
			Status: c.status, Header: http.Header{"Content-Type": {c.media}}, Answer: c.answer,
		})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
