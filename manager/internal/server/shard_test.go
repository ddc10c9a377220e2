package server

import (
	"context"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// shardSite is a server of a shard, or of no shard in particular.
func shardSite(t *testing.T, w shard.Want) *site {
	t.Helper()
	st := mem.New(mem.Options{})
	keeper, _, err := shard.Open(t.Context(), st, w)
	if err != nil {
		t.Fatal(err)
	}
	return newSite(t, siteOptions{store: st, ledger: ledger.Options{Owners: keeper}, server: Options{Ledger: keeper}})
}

// A call that means another shard does nothing, whatever it is, and is logged.
func TestCallForAnotherShardDoesNothing(t *testing.T) {
	s := shardSite(t, shard.Want{Name: "A"})
	reserve := `{"key":"k","token":"t"}`
	for _, call := range []struct{ method, path, body string }{
		{"POST", api.PathReserve, reserve},
		{"POST", api.PathRenew, reserve},
		{"POST", api.PathUnknown, reserve},
		{"POST", api.PathRelease, reserve},
		{"POST", api.PathCommit, `{"key":"k","token":"t","result":{"status":201}}`},
		{"POST", api.PathReject, `{"key":"k","token":"t","result":{"status":201}}`},
		{"POST", api.PathCommit, `no JSON`},
		{"GET", "/v1/ledger/entries", ""},
		{"DELETE", "/v1/ledger/entries/k", ""},
	} {
		for _, meant := range []string{"B", "a", ""} {
			a := s.Do(call.method, call.path, "application/json", call.body, api.HeaderShard, meant)
			if a.Status != 421 || !strings.Contains(a.Body, `"code":"wrong-shard"`) || !strings.Contains(a.Body, `shard \"A\", and the call means \"`+meant+`\"`) {
				t.Errorf("%s %s for %q: %d %s", call.method, call.path, meant, a.Status, a.Body)
			}
			if got := a.Header.Get(api.HeaderShard); got != "A" {
				t.Errorf("%s %s: answered by %q", call.method, call.path, got)
			}
		}
	}
	stats, err := s.ledger.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stats.Each(func(op, outcome string, n uint64) {
		if n != 0 {
			t.Errorf("%d %s %s", n, op, outcome)
		}
	})
	if n := strings.Count(s.log.String(), "ALARM: a call means another shard"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, s.log)
	}
	if a := s.Do("GET", "/healthz", "", "", api.HeaderShard, "B"); a.Status != 200 {
		t.Errorf("health: %d", a.Status)
	}
	for _, header := range [][]string{{api.HeaderShard, "A"}, nil} {
		if a := s.Do("POST", api.PathReserve, "application/json", reserve, header...); a.Status != 201 || a.Header.Get(api.HeaderShard) != "A" {
			t.Errorf("%v: %d %s %v", header, a.Status, a.Body, a.Header)
		}
	}
}

// Without a name of its own it takes calls for any.
func TestUnnamedManagerTakesCallsForAnyShard(t *testing.T) {
	s := shardSite(t, shard.Want{})
	for _, meant := range []string{"A", "B"} {
		a := s.Do("POST", api.PathReserve, "application/json", `{"key":"k","token":"t"}`, api.HeaderShard, meant)
		if a.Status != 201 || a.Header.Get(api.HeaderShard) != "" {
			t.Errorf("%s: %d %s %v", meant, a.Status, a.Body, a.Header)
		}
	}
}

// The list refuses a reserve of another's key and nothing else, and stats show who the ledger is.
func TestMovedKeyIsRefused(t *testing.T) {
	s := shardSite(t, shard.Want{Name: "A", Shards: []string{"B", "A"}})
	key := "k"
	for api.Owner([]string{"A", "B"}, "", key) == 0 {
		key += "k"
	}
	reserve := `{"key":"` + key + `","token":"t"}`
	a := s.JSON("POST", api.PathReserve, reserve)
	if a.Status != 421 || !strings.Contains(a.Body, `"code":"key-moved"`) || !strings.Contains(a.Body, `the shard \"B\" owns this key`) {
		t.Errorf("reserve: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("POST", api.PathRelease, reserve); a.Status != 200 {
		t.Errorf("release: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("POST", api.PathCommit, `{"key":"`+key+`","token":"t","result":{"status":201}}`); a.Status != 200 {
		t.Errorf("late commit: %d %s", a.Status, a.Body)
	}
	if a := s.JSON("POST", api.PathReserve, reserve); a.Status != 200 {
		t.Errorf("replay: %d %s", a.Status, a.Body)
	}
	a = s.Do("GET", "/v1/ledger/stats", "", "")
	if !strings.HasPrefix(a.Body, `{"ledger_id":"`) || !strings.Contains(a.Body, `","shard":"A","shards":["A","B"],"shards_version":1,"entries":{`) ||
		!strings.Contains(a.Body, `"moved":1`) || !strings.Contains(a.Body, `"durabilities":["local"]`) ||
		!strings.Contains(a.Body, `"max_result_bytes":1048576`) {
		t.Errorf("stats: %s", a.Body)
	}
}
