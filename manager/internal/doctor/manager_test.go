package doctor

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
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
