package ui

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/httpd"
)

func TestSystemTellsNoSecrets(t *testing.T) {
	s := newSite(t, siteOptions{tokens: true, change: func(o *Options) {
		o.System = func(context.Context) System {
			return System{
				Engine: "wal", Durable: true, Log: &Log{Segments: 3, StateBytes: 5 << 20, StateSequence: 7},
				Fsync:    &Histogram{Count: 5, Mean: time.Millisecond, Buckets: []Bucket{{UpTo: time.Millisecond}, {UpTo: 2 * time.Millisecond, Count: 4}, {Count: 1}}},
				Shipping: &Shipping{Place: "s3://b/p", Term: 2, Records: 4, Age: time.Second},
				Shard:    Shard{ID: "0123", Name: nasty, Shards: []string{"a", "b"}, Version: 7},
				Origin:   "dc1", Peers: []Peer{
					{Name: "dc2", URL: "http://10.2.0.1:8090"}, {Name: "dc3", URL: "http://10.3.0.1:8090", Lag: 90 * time.Second, Missing: 1234, Error: nasty},
				},
				Settings: []Setting{{"store-dsn", "", "flag", true}, {"listen", nasty, "flag", false}},
			}
		}
	}})
	s.login(adminToken)
	a := s.get("/ui/system")
	for _, token := range []string{operatorToken, adminToken, gateToken, plainToken} {
		if strings.Contains(a.body, token) {
			t.Errorf("the page shows the token %s", token)
		}
	}
	for _, want := range []string{">gate<", ">operator<", "no word", ">hidden<", "version 7", "s3://b/p", "10.2.0.1", "has the records up to 7.", "longer", "2ms", ">1 minute<", ">1\u202f234<", ">answered<", ">failed<"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the page lacks %q: %s", want, a.body)
		}
	}
	if strings.Contains(a.body, "<script>alert") || a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

// TestSystemTellsOfCertificates: callers may need a certificate where they need no token.
func TestSystemTellsOfCertificates(t *testing.T) {
	auth, err := httpd.NewAuth("", true)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, siteOptions{change: func(o *Options) { o.Auth = auth }})
	if a := s.get("/ui/system"); a.status != 200 || !strings.Contains(a.body, "Callers need a client certificate, and no token.") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

func TestSystemOfALibraryHasNothingToSay(t *testing.T) {
	s := newSite(t, siteOptions{})
	if a := s.get("/ui/system"); a.status != 200 || !strings.Contains(a.body, "no token") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}
