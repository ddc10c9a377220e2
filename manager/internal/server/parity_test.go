package server

import (
	"bufio"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// digits are what differs from one moment to the next.
var digits = regexp.MustCompile(`_ms":[0-9]+`)

// TestEnginesAgree: which engine serves makes no difference to a client, down
// to what is said about mistakes.
func TestEnginesAgree(t *testing.T) {
	post := func(path, body string, header ...string) string {
		head := "POST " + path + " HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: " + strconv.Itoa(len(body)) + "\r\n"
		for _, h := range header {
			head += h + "\r\n"
		}
		return head + "\r\n" + body
	}
	line := func(line string, header ...string) string {
		head := line + "\r\nhost: x\r\nconnection: close\r\n"
		for _, h := range header {
			head += h + "\r\n"
		}
		return head + "\r\n"
	}
	reserve := `{"key":"k","token":"t"}`
	raw := api.ReserveRequest{Key: "r", Token: "t"}
	requests := []string{
		post(api.PathReserve, reserve),
		post(api.PathReserve, reserve, "content-type: application/json; charset=utf-8"),
		post(api.PathReserve, reserve, "Content-Type: Application/JSON"),
		post(api.PathReserve, reserve, "content-type: text/plain"),
		post(api.PathReserve, reserve, "content-type: application/x-www-form-urlencoded"),
		post(api.PathReserve, reserve, "content-type: multipart/form-data; boundary=x"),
		post(api.PathReserve, string(raw.AppendRaw(nil)), "content-type: "+api.ContentTypeRaw),
		post(api.PathReserve, "garbage", "content-type: "+api.ContentTypeRaw),
		post(api.PathReserve, ""),
		post(api.PathReserve, "{"),
		post(api.PathReserve, `{"key":"k"}`),
		post(api.PathReserve, `{"key":"k","token":"t","colour":1}`),
		post(api.PathReserve, `{"key":"k","token":"other"}`),
		post(api.PathReserve, `{"key":"`+strings.Repeat("k", 256)+`","token":"t"}`),
		post(api.PathReserve+"?a=b", reserve),
		post(api.PathReserve+"/", reserve),
		post("/"+api.PathReserve, reserve),
		post("http://x"+api.PathReserve, reserve),
		post(api.PathReserve, reserve, "expect: 100-continue"),
		post(api.PathCommit, `{"key":"k","token":"t","result":{"status":201,"headers":[["content-type","text/plain"]],"body":"aGk="}}`),
		post(api.PathCommit, `{"key":"k","token":"t","result":{"status":99}}`),
		post(api.PathReject, `{"key":"k","token":"t","result":{"status":400}}`),
		post(api.PathRelease, `{"key":"k","token":"t"}`),
		post(api.PathRelease, `{"key":"none","token":"t"}`),
		post("/v1/ledger/stats", ""),
		line("POST " + api.PathReserve + " HTTP/1.1"),
		line("POST "+api.PathReserve+" HTTP/1.1", "transfer-encoding: chunked") + "17\r\n" + reserve + "\r\n0\r\n\r\n",
		line("GET " + api.PathReserve + " HTTP/1.1"),
		line("PUT " + api.PathReserve + " HTTP/1.1"),
		line("OPTIONS " + api.PathReserve + " HTTP/1.1"),
		line("get " + api.PathReserve + " HTTP/1.1"),
		line("GET /v1/ledger/entries/k HTTP/1.1"),
		line("GET /v1/ledger/entries/k HTTP/1.0"),
		line("HEAD /v1/ledger/entries/none HTTP/1.1"),
		line("GET /v1/ledger/entries/none HTTP/1.1"),
		line("GET /v1/ledger/entries/k?scope=s HTTP/1.1"),
		line("GET /v1/ledger/entries/k?scope=&scope= HTTP/1.1"),
		line("GET /v1/ledger/entries/k?colour=1 HTTP/1.1"),
		line("GET /v1/ledger/entries/k? HTTP/1.1"),
		line("GET /v1/ledger/entries/%6B HTTP/1.1"),
		line("GET /v1/ledger/entries/a%2Fb HTTP/1.1"),
		line("GET /v1/ledger/entries/a/b HTTP/1.1"),
		line("GET /v1/ledger/entries/%20 HTTP/1.1"),
		line("GET /v1/ledger/entries/%C3%A9 HTTP/1.1"),
		line("GET /v1/ledger/entries/../stats HTTP/1.1"),
		line("GET /v1/ledger/./stats HTTP/1.1"),
		line("GET /v1/ledger/entries?limit=0 HTTP/1.1"),
		line("GET /v1/ledger/entries?state=open HTTP/1.1"),
		line("GET /v1/ledger/entries?cursor=x HTTP/1.1"),
		line("GET /v1/ledger/entries?job_id=x&limit=1 HTTP/1.1"),
		line("GET /v1/ledger/entries?state=%zz HTTP/1.1"),
		line("GET /v1/ledger/entries?state=a+b HTTP/1.1"),
		line("GET /readyz HTTP/1.1"),
		line("GET / HTTP/1.1"),
		line("GET /nowhere?x HTTP/1.1"),
		line("DELETE /v1/ledger/entries/none HTTP/1.1"),
	}
	var answers [2][]string
	for i, engine := range httpd.EngineNames() {
		s := newSite(t, engine, siteOptions{})
		for _, request := range requests {
			c := s.dial()
			if _, err := io.WriteString(c, request); err != nil {
				t.Fatal(err)
			}
			method, _, _ := strings.Cut(request, " ")
			resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
			if err != nil {
				t.Fatalf("%s: %q: %v", engine, request, err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatalf("%s: %q: %v", engine, request, err)
			}
			answer := resp.Status
			for _, name := range []string{"content-type", "retry-after", "allow", api.HeaderManager} {
				answer += "\n" + name + ": " + resp.Header.Get(name)
			}
			answers[i] = append(answers[i], answer+"\n"+digits.ReplaceAllString(string(body), `_ms":N`))
		}
	}
	for i, request := range requests {
		if answers[0][i] != answers[1][i] {
			t.Errorf("%q\n%s says %s\n%s says %s", request, httpd.EngineNames()[0], answers[0][i], httpd.EngineNames()[1], answers[1][i])
		}
	}
}
