package e2e

import (
	"encoding/json"
	"net/http"
	"testing"

	manager "github.com/oncegate/oncegate/manager/client"
)

// logStack is a gate in front of the logs of a manager that has the log "events".
func logStack(t *testing.T, target envoyTarget, mode string, config manager.LogConfig) (*stack, *manager.Log) {
	t.Helper()
	s := managerStack(t, target, mode, map[string]any{
		"match": []any{map[string]any{"methods": []string{"POST"}, "path_prefix": "/v1/logs/"}},
	})
	log, err := jobsClient(t, s.managerAddr).OpenLog("events")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Create(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	return s, log
}

func appendEntry(key, payload string) call {
	return call{path: "/v1/logs/events/entries", key: &key, body: `{"payload":"` + payload + `"}`}
}

// appended is where an answer says that the entry is.
func appended(t *testing.T, a answer) (at struct {
	Entry     uint64
	ID        string
	Duplicate bool
}) {
	t.Helper()
	if err := json.Unmarshal(a.body, &at); err != nil {
		t.Fatalf("%v: %v", a, err)
	}
	return at
}

// The key becomes the entry's id. The gate answers a retry with the same entry, also when the manager
// is away; a gate that does not know the answer asks the log, which does not append again.
func TestAppendThroughTheGate(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s, log := logStack(t, target, mode, manager.LogConfig{})
		s.startProxy(t)
		p, other := s.proxies[0], s.proxies[1]
		key := newKey()
		first := wantFirst(t, p, appendEntry(key, "aGVsbG8="), http.StatusCreated)
		if at := appended(t, first); at.Entry != 1 || at.ID != key || at.Duplicate {
			t.Fatalf("the first append: %v", first)
		}
		wantReplay(t, p, appendEntry(key, "aGVsbG8="), first)
		second := wantFirst(t, other, appendEntry(key, "aGVsbG8="), http.StatusOK)
		if at := appended(t, second); at.Entry != 1 || at.ID != key || !at.Duplicate {
			t.Errorf("a retry through another gate: %v", second)
		}
		wantFirst(t, p, appendEntry(newKey(), "aGVsbG8="), http.StatusCreated)

		page, err := log.Read(t.Context(), manager.LogQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Entries) != 2 || page.Entries[0].ID != key {
			t.Errorf("the log has %+v", page.Entries)
		}
		s.manager.kill()
		wantReplay(t, p, appendEntry(key, "aGVsbG8="), first)
	})
}

// A sequence that comes too early is refused for now only. The gate does not keep the refusal, so the
// retry is appended when the sequence before it is there.
func TestStructuredIDsThroughTheGate(t *testing.T) {
	eachEnvoy(t, func(t *testing.T, target envoyTarget, mode string) {
		s, log := logStack(t, target, mode, manager.LogConfig{Identity: "structured"})
		p := s.proxies[0]
		id := func(sequence string) string { return "client:" + sequence + ":0123456789abcdef" }
		first := wantFirst(t, p, appendEntry(id("1"), "MQ=="), http.StatusCreated)
		wantFirst(t, p, appendEntry(id("3"), "Mw=="), http.StatusConflict)
		wantFirst(t, p, appendEntry(id("2"), "Mg=="), http.StatusCreated)
		third := wantFirst(t, p, appendEntry(id("3"), "Mw=="), http.StatusCreated)
		wantReplay(t, p, appendEntry(id("3"), "Mw=="), third)
		wantReplay(t, p, appendEntry(id("1"), "MQ=="), first)

		page, err := log.Read(t.Context(), manager.LogQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range page.Entries {
			if e.ID != id([]string{"1", "2", "3"}[i]) {
				t.Errorf("entry %d is %s", i+1, e.ID)
			}
		}
		if len(page.Entries) != 3 {
			t.Errorf("the log has %+v", page.Entries)
		}
	})
}
