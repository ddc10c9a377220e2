package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/admin"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestWhatRunsJobsAgainIsNotRepeated: after a lost answer, jobs may have run and failed again, and would run once more.
func TestWhatRunsJobsAgainIsNotRepeated(t *testing.T) {
	requests := 0
	lost := roundTripper(func(*http.Request) (*http.Response, error) {
		requests++
		return nil, errors.New("the connection is cut on purpose")
	})
	c, err := client.New(client.Options{URL: "http://x", MaxAttempts: 2, BackoffMax: 1, HTTP: &http.Client{Transport: lost}})
	if err != nil {
		t.Fatal(err)
	}
	a := admin.New(c)
	bulk := func(b admin.BulkRequest) func(context.Context) error {
		return func(ctx context.Context) error { _, err := a.Bulk(ctx, b); return err }
	}
	for what, c := range map[string]struct {
		call func(context.Context) error
		want int
	}{
		"retry":           {func(ctx context.Context) error { _, err := a.Retry(ctx, "x", 0); return err }, 1},
		"replay":          {func(ctx context.Context) error { _, err := a.Replay(ctx, "f", "x"); return err }, 1},
		"run":             {func(ctx context.Context) error { _, err := a.RunSchedule(ctx, "x", ""); return err }, 1},
		"run with a key":  {func(ctx context.Context) error { _, err := a.RunSchedule(ctx, "x", "k"); return err }, 2},
		"cancel":          {func(ctx context.Context) error { _, err := a.Cancel(ctx, "x"); return err }, 2},
		"retry of many":   {bulk(admin.BulkRequest{Action: admin.Retry}), 1},
		"replay of many":  {bulk(admin.BulkRequest{Action: admin.Replay}), 1},
		"delete of many":  {bulk(admin.BulkRequest{Action: admin.Delete}), 2},
		"a retry's count": {bulk(admin.BulkRequest{Action: admin.Retry, DryRun: true}), 2},
	} {
		requests = 0
		if err := c.call(t.Context()); err == nil || requests != c.want {
			t.Errorf("%s: %d requests, %v; want %d", what, requests, err, c.want)
		}
	}
}

// TestDurationsHaveTheFormOfTheAPI encodes what the API answers as it was, and finds each duration in it.
func TestDurationsHaveTheFormOfTheAPI(t *testing.T) {
	second := time.Second
	for text, want := range map[string]any{
		`{"worker":"w","expires_in_ms":1500}`:                                               &client.Lease{Worker: "w", ExpiresIn: 1500 * time.Millisecond},
		`{"strategy":"until_executed","ttl_ms":1000}`:                                       &client.Dedup{Strategy: "until_executed", TTL: second},
		`{"name":"<","url":"u","lag_seconds":1.5,"lag_entries":3,"answered_seconds_ago":1}`: &admin.Peer{Name: "<", URL: "u", Lag: 1500 * time.Millisecond, LagEntries: 3, AnsweredAgo: &second},
		`{"key":"k","scope":"s","state":"pending","age_ms":1000,"expires_in_ms":2000}`:      &admin.Entry{Key: "k", Scope: "s", State: admin.EntryPending, Age: second, ExpiresIn: 2 * second},
		`{"key":"k","scope":"s","winner":"a","expires_in_ms":1000,"outcomes":[]}`:           &admin.Conflict{Key: "k", Scope: "s", Winner: "a", Outcomes: []admin.ConflictOutcome{}, ExpiresIn: second},
		`{"remaining_ms":1000,"why":["w"]}`:                                                 &admin.Quarantine{Why: []string{"w"}, Remaining: second},
		`{"log":"l","identity":"ids","window_ms":1000,"max_keys":4,"max_bytes":5,"when_full":"evict","retain_ms":2000,"retain_bytes":0,"first":1,"last":2,"keys":0,"window_bytes":0,"evicted":0,"evicted_age_ms":0,"writers":0,"disk_bytes":0}`: &client.LogInfo{
			Log: "l", First: 1, Last: 2, Config: client.LogConfig{Identity: "ids", WhenFull: "evict", MaxBytes: 5, MaxKeys: 4, Window: second, Retain: 2 * second}},
		`{"name":"f","paused":false,"queued":1,"scheduled":0,"active":0,"dead":0,"oldest_queued_ms":1000,"last_minute":{"enqueued":0,"claimed":0,"completed":0,"failed":0,"retried":0}}`: &admin.Function{
			Name: "f", Queued: 1, OldestQueued: second},
	} {
		got := reflect.New(reflect.TypeOf(want).Elem()).Interface()
		if err := json.Unmarshal([]byte(text), got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if b, err := want.(json.Marshaler).MarshalJSON(); err != nil || string(b) != text {
			t.Errorf("encoded as %s, %v; want %s", b, err, text)
		}
	}
	for want, v := range map[string]any{
		`{"function":"f","delay_ms":1}`:                                 client.Submission{Function: "f", Delay: time.Microsecond},
		`{"worker":"w","lease_ms":1000,"wait_ms":2000}`:                 client.ClaimRequest{Worker: "w", Lease: second, Wait: 2 * second},
		`{"lease_token":"t"}`:                                           client.RetryRequest{LeaseToken: "t"},
		`{"lease_token":"t","delay_ms":0}`:                              client.RetryRequest{LeaseToken: "t", Delay: new(time.Duration)},
		`{"window_ms":1000}`:                                            client.LogConfig{Window: second},
		`{"cron":"@daily","function":"f","payload":[1],"missed":"all"}`: admin.ScheduleSpec{Cron: "@daily", Function: "f", Payload: []int{1}, Missed: "all"},
		`{"action":"delete","state":"queued","older_than_ms":1000,"newer_than_ms":2000}`: admin.BulkRequest{
			Action: admin.Delete, ListQuery: admin.ListQuery{State: client.StateQueued, OlderThan: second, NewerThan: 2 * second}},
	} {
		if b, err := json.Marshal(v); err != nil || string(b) != want {
			t.Errorf("encoded as %s, %v; want %s", b, err, want)
		}
	}
}
