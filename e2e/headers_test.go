package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A request or an answer with as many or as large headers as the listener and the upstream's cluster allow gets through with a
// key whenever it does without one.
func TestHeadersAreNotLimitedFurther(t *testing.T) {
	eachVersion(t, func(t *testing.T, target envoyTarget) {
		var raise func(*hcmv3.HttpConnectionManager) error
		for _, outer := range []string{"default limits", "raised limits"} {
			s := newSurface(t, target, "body", nil, func(w http.ResponseWriter, r *http.Request) {
				n, _ := strconv.Atoi(r.Header.Get("X-Answer-Lines"))
				size, _ := strconv.Atoi(r.Header.Get("X-Answer-Bytes"))
				for i := range n {
					w.Header().Set(fmt.Sprintf("X-Filler-%d", i), strings.Repeat("a", size/n))
				}
				w.WriteHeader(201)
			}, raise)
			p := s.proxies[0]
			outcomes := map[int]int{}
			try := func(what string, headers ...string) {
				t.Helper()
				// The other header replaces the key's.
				plain := pay("", append(headers[:len(headers):len(headers)], "Other-Key-Header", newKey())...)
				plain.key = nil
				want, got := send(t, p, plain), send(t, p, pay(newKey(), headers...))
				outcomes[want.status]++
				if got.status != want.status {
					t.Errorf("%s, %s: with a key %v, without one %d", outer, what, got, want.status)
				}
			}
			many := func(n, size int) (headers []string) {
				for i := range n {
					headers = append(headers, fmt.Sprintf("X-Filler-%d", i), strings.Repeat("a", size/n))
				}
				return headers
			}
			for n := 80; n <= 102; n++ {
				try(fmt.Sprintf("%d more request headers", n), many(n, n)...)
				try(fmt.Sprintf("%d more answer headers", n), "X-Answer-Lines", strconv.Itoa(n), "X-Answer-Bytes", strconv.Itoa(n))
			}
			for kb := 52; kb <= 61; kb++ {
				try(fmt.Sprintf("%d kB more of request headers", kb), many(10, kb<<10)...)
				try(fmt.Sprintf("%d kB more of answer headers", kb), "X-Answer-Lines", "10", "X-Answer-Bytes", strconv.Itoa(kb<<10))
			}
			if outcomes[201] == 0 || raise == nil && len(outcomes) < 2 {
				t.Errorf("%s: %v: the test met no limit", outer, outcomes)
			}
			raise = func(hcm *hcmv3.HttpConnectionManager) error {
				hcm.MaxRequestHeadersKb = wrapperspb.UInt32(96)
				return nil
			}
		}
	})
}

// A host that HTTP/2 does not allow gets the same answer with a key as without one, and the request runs once.
func TestHostsThatOnlyHTTP1Allows(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := sharedStack(t, target, mode)
		p := s.proxies[0]
		for _, host := range []string{"", "user@pay.test", "pay.test", "pay_test", "[::1]:80", "a b", "a/b", `a"b`, "pay%2etest", "a,b", "päy.test"} {
			key := newKey()
			without, with := rawPost(t, p, host, ""), rawPost(t, p, host, key)
			if without != with {
				t.Errorf("host %q: status %d with a key, %d without one", host, with, without)
			}
			if with == 201 {
				s.wantExecutions(t, key, 1)
			}
		}
	})
}

// rawPost sends a request as it is and returns the status.
func rawPost(t *testing.T, p *proxy, host, key string) int {
	t.Helper()
	c := dial(t, p)
	text := "POST /payments HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 2\r\nConnection: close\r\n"
	if key != "" {
		text += "Idempotency-Key: " + key + "\r\n"
	}
	if _, err := io.WriteString(c, text+"\r\n{}"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("host %q: %v", host, err)
	}
	resp.Body.Close()
	return resp.StatusCode
}
