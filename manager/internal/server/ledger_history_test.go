package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestHistoryOverHTTP: the calls about the recent past, and what they refuse. The site compares each answer with the
// description of the API.
func TestHistoryOverHTTP(t *testing.T) {
	s := newSite(t, siteOptions{})
	for _, c := range [][2]string{
		{"reserve", `{"key":"k","scope":"s","token":"t","fingerprint":"f1"}`}, {"renew", `{"key":"k","scope":"s","token":"t"}`},
		{"commit", `{"key":"k","scope":"s","token":"t","result":{"status":200,"body":""}}`}, {"reserve", `{"key":"k","scope":"s","token":"u"}`},
		{"reserve", `{"key":"k","scope":"s","token":"v","fingerprint":"f2"}`}, {"release", `{"key":"k","scope":"s","token":"w"}`},
	} {
		s.JSON("POST", "/v1/ledger/"+c[0], c[1])
	}
	for path, wants := range map[string][]string{
		"/v1/ledger/entries/k/history?scope=s": {`"what":"reserve","from":"127.0.0.1","count":1`, `"what":"renew"`, `"what":"commit"`, `"replayed":1`, `"fingerprint":"f2","recorded_fingerprint":"f1"`},
		"/v1/ledger/entries/none/history":      {`"changes":[],"changes_left_out":0,"outcomes":{}`},
		"/v1/ledger/incidents?kind=mismatch":   {`"total":1`, `"op":"reserve","key":"k","scope":"s","from":"127.0.0.1"`},
		"/v1/ledger/incidents?kind=fenced":     {`"op":"release"`},
		"/v1/ledger/incidents?kind=full":       {`"total":0,"incidents":[]`},
		"/v1/ledger/activity":                  {`"entries":1`, `"keys_per_second":`, `"minutes":[]`},
	} {
		a := s.JSON("GET", path, "")
		for _, want := range wants {
			if a.Status != 200 || !strings.Contains(a.Body, want) {
				t.Errorf("%s: %d %s; want %s", path, a.Status, a.Body, want)
			}
		}
		if strings.Contains(a.Body, `"t"`) {
			t.Errorf("%s shows a token: %s", path, a.Body)
		}
	}
	for _, path := range []string{
		"/v1/ledger/incidents", "/v1/ledger/incidents?kind=other", "/v1/ledger/incidents?kind=full&limit=0", "/v1/ledger/incidents?kind=full&limit=1001",
		"/v1/ledger/entries/%00/history", "/v1/ledger/entries/k/history?scope=%00", "/v1/ledger/entries/k/history?x=1", "/v1/ledger/activity?x=1",
	} {
		if a := s.JSON("GET", path, ""); a.Status != 400 {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.ledger.Run(ctx, nil) })
	for len(s.ledger.Funnel()) == 0 {
		time.Sleep(time.Millisecond)
	}
	if a := s.JSON("GET", "/v1/ledger/activity", ""); !strings.Contains(a.Body, `"not_recorded":0`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	cancel()
	wg.Wait()
}
