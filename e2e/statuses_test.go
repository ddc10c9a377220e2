package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"testing"
)

// Answers of any status reach the first caller as they do without a key, and retries get them unchanged. None of them
// closes an HTTP/1.1 connection that would stay open without the gate.
func TestAnswersKeepStatusAndConnection(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s := newSurface(t, target, mode, nil, func(w http.ResponseWriter, r *http.Request) {
			status, _ := strconv.Atoi(r.Header.Get("X-Status"))
			w.Header().Set("Idempotent-Replayed", "upstream's")
			w.WriteHeader(status)
			fmt.Fprint(w, "answer")
		}, nil)
		p := s.proxies[0]
		ask := func(key string, status int) string {
			c := dialRaw(t, p)
			c.write(t, fmt.Sprintf("POST /payments HTTP/1.1\r\nHost: %s\r\n%sX-Status: %d\r\nContent-Length: 2\r\n\r\nab", host, key, status))
			r, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatalf("status %d: %v", status, err)
			}
			text, err := bufio.NewReader(r.Body).ReadString(0)
			if text == "" {
				t.Fatalf("status %d: no body: %v", status, err)
			}
			return fmt.Sprintf("status %d, body %q, close %v, replayed %q", r.StatusCode, text, r.Close, r.Header.Get("Idempotent-Replayed"))
		}
		for _, status := range []int{200, 400, 404, 418, 500, 599, 600, 700, 999} {
			want := fmt.Sprintf(`status %d, body "answer", close false, replayed `, status)
			key := "Idempotency-Key: " + newKey() + "\r\n"
			for _, c := range []struct{ name, key, replayed string }{
				{"without a key", "", `"upstream's"`}, {"first", key, `"upstream's"`}, {"retry", key, `"true"`},
			} {
				if got := ask(c.key, status); got != want+c.replayed {
					t.Errorf("%s: %s, want %s%s", c.name, got, want, c.replayed)
				}
			}
		}
		// The paths for gRPC are in the shipped files, and not for clients.
		for _, path := range []string{"/oncegate/answer", "/oncegate/blank"} {
			a := send(t, p, call{method: "GET", path: path})
			if a.status != 404 || a.headers.Get("Oncegate-Blank") != "" {
				t.Errorf("%s: %v", path, a)
			}
		}
		// The gate's own refusals.
		c := dialRaw(t, p)
		c.send(t, "a\x80b", "text/plain", amount)
		if r := c.answer(t, 400); r.Close {
			t.Error("a refusal closed the connection")
		}
	})
}
