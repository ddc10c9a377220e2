package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
)

// slowAtFirst stands for a manager whose first answers take longer than they should.
type slowAtFirst int

func (s *slowAtFirst) RoundTrip(*http.Request) (*http.Response, error) {
	if *s--; *s >= 0 {
		time.Sleep(2 * slowAnswer)
	}
	w := httptest.NewRecorder()
	w.Header().Set("Oncegate-Manager", "1.2.3")
	return w.Result(), nil
}

// TestOneSlowAnswerIsNoWarning: a machine that is busy for a moment is not far away. One that is always slow is.
func TestOneSlowAnswerIsNoWarning(t *testing.T) {
	for slow, want := range map[slowAtFirst]Level{0: OK, 1: OK, moreAnswers: OK, 1 + moreAnswers: Warn} {
		synctest.Test(t, func(t *testing.T) {
			var r report
			Target{Manager: "http://manager", Client: &http.Client{Transport: &slow}}.manager(t.Context(), &r, nil)
			if got := r.findings[0]; got.Check != checkManager || got.Level != want {
				t.Errorf("the first %d answers are slow: %+v, want %v", slow, got, want)
			}
		})
	}
}

// The gates' rules ask for times of their own, or leave it to the manager.
func TestAskedTTLs(t *testing.T) {
	gates := func(configs ...string) (gates []gate) {
		for _, text := range configs {
			var g gate
			if err := json.Unmarshal([]byte(text), &g.config); err != nil {
				t.Fatal(err)
			}
			gates = append(gates, g)
		}
		return gates
	}
	for _, c := range []struct {
		gates             []gate
		shortest, longest time.Duration
	}{
		{nil, time.Hour, time.Hour},
		{gates(`{}`), time.Hour, time.Hour},
		{gates(`{"committed_ttl_seconds":60}`), time.Minute, time.Minute},
		{gates(`{"committed_ttl_seconds":60,"match":[{},{"committed_ttl_seconds":7200}]}`), time.Minute, 2 * time.Hour},
		{gates(`{"match":[{"committed_ttl_seconds":0.5},{}]}`, `{}`), 500 * time.Millisecond, time.Hour},
	} {
		if shortest, longest := askedTTLs(c.gates, time.Hour); shortest != c.shortest || longest != c.longest {
			t.Errorf("%v: %s to %s, want %s to %s", c.gates, shortest, longest, c.shortest, c.longest)
		}
	}
}

// TestOnlyFencedOutcomesAreAWarning: a release records no work, and the attempt of a fenced renewal still reports
// its outcome.
func TestOnlyFencedOutcomesAreAWarning(t *testing.T) {
	for _, c := range []struct {
		calls map[string]uint64
		level Level
		found string
	}{
		{map[string]uint64{"release": 3, "renew": 2}, OK, "none"},
		{map[string]uint64{"release": 3, "commit": 1}, Warn, "1 outcome was refused because another attempt had the key: 1 commit"},
		{map[string]uint64{"commit": 2, "reject": 1, "unknown": 1}, Warn, "4 outcomes were refused because another attempt had the key: 2 commit, 1 reject, 1 unknown"},
	} {
		s := schema.LedgerStats{Calls: map[string]map[string]uint64{}}
		for op, n := range c.calls {
			s.Calls[op] = map[string]uint64{"fenced": n}
		}
		var r report
		settled(&r, s)
		if f := r.findings[len(r.findings)-1]; f.Check != "manager: fenced outcomes" || f.Level != c.level || f.Found != c.found {
			t.Errorf("%v: %+v", c.calls, f)
		}
	}
}
