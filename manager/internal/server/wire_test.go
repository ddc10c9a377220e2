package server

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// digits are what differs from one moment to the next.
var digits = regexp.MustCompile(`_ms":[0-9]+`)

var updateWire = flag.Bool("update", false, "write the answers of TestBytesOnTheWireStayTheSame to testdata")

// A client sees the same bytes as ever, down to what is said about mistakes.
func TestBytesOnTheWireStayTheSame(t *testing.T) {
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
	s := newSite(t, siteOptions{})
	var text strings.Builder
	for _, request := range requests {
		c := s.Dial()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(request, " ")
		resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%q: %v", request, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%q: %v", request, err)
		}
		fmt.Fprintf(&text, "%q\n%s\n", request, resp.Status)
		for _, name := range []string{"content-type", "retry-after", "allow", api.HeaderManager} {
			if v := resp.Header.Get(name); v != "" {
				fmt.Fprintf(&text, "%s: %s\n", name, v)
			}
		}
		fmt.Fprintf(&text, "%s\n\n", digits.ReplaceAllString(string(body), `_ms":N`))
	}
	const golden = "testdata/wire.golden"
	if *updateWire {
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := strings.Split(text.String(), "\n\n"), strings.Split(string(want), "\n\n")
	for i := range max(len(got), len(wanted)) {
		if i >= len(got) || i >= len(wanted) {
			t.Fatalf("%d answers, want %d", len(got)-1, len(wanted)-1)
		}
		if got[i] != wanted[i] {
			t.Errorf("got\n%s\nwant\n%s", got[i], wanted[i])
		}
	}
}
