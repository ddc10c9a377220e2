package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// What the gateway costs: a POST of 100 bytes to an upstream that echoes it, directly and
// through a filter in Go that does nothing.
func BenchmarkPost(b *testing.B) {
	for _, through := range []bool{false, true} {
		name := "direct"
		if through {
			name = "gateway"
		}
		b.Run(name, func(b *testing.B) {
			u := newUpstream(b, echo)
			url := u.URL
			if through {
				url = up(b, guest{}, u.addr(), nil).url
			}
			c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			defer c.CloseIdleConnections()
			body := strings.Repeat("x", 100)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := c.Post(url, "text/plain", strings.NewReader(body))
					if err != nil {
						b.Error(err)
						return
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 201 {
						b.Error(resp.Status, err)
					}
					resp.Body.Close()
				}
			})
		})
	}
}
