package home_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/home"
)

// TestBoundsOfCalls: a home that hangs uses up its own places only, for a bounded time.
func TestBoundsOfCalls(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	silent := &stuck{hang: hang}
	homes := home.New(silent, home.Options{Timeout: 50 * time.Millisecond, MaxCalls: 1})
	done := make(chan error, 1)
	silent.began = make(chan struct{}, 1)
	go func() {
		_, err := homes.Call(t.Context(), "dc2", api.OpReserve, nil, time.Hour)
		done <- err
	}()
	<-silent.began
	if _, err := homes.Call(t.Context(), "dc2", api.OpReserve, nil, 0); !errors.Is(err, home.ErrUnavailable) {
		t.Error("beyond the bound:", err)
	}
	close(hang)
	if err := <-done; !errors.Is(err, home.ErrUnavailable) {
		t.Error("not written:", err)
	}
	silent.hang = nil
	if _, err := homes.Call(t.Context(), "dc2", api.OpReserve, nil, 0); !errors.Is(err, home.ErrUnavailable) {
		t.Error("after the timeout:", err)
	}
	if _, err := homes.Call(t.Context(), "dc9", api.OpReserve, nil, 0); !errors.Is(err, home.ErrUnavailable) {
		t.Error("no peer:", err)
	}
	wait, free := homes.Wait("dc2", time.Second)
	if wait != time.Second {
		t.Error("no place to wait")
	}
	if more, _ := homes.Wait("dc2", time.Second); more != 0 {
		t.Error("more waiters than places")
	}
	free()
	free()
	if wait, _ := homes.Wait("dc2", time.Second); wait != time.Second {
		t.Error("no place after the wait")
	}
}

// stuck is a network in which calls end with their context, or when hang is closed.
type stuck struct {
	hang  chan struct{}
	began chan struct{}
}

func (*stuck) Origin() string    { return "dc1" }
func (*stuck) Names() []string   { return []string{"dc1", "dc2"} }
func (*stuck) URL(string) string { return "http://192.0.2.1" }
func (s *stuck) Do(_ string, r *http.Request) (*http.Response, error) {
	select {
	case s.began <- struct{}{}:
	default:
	}
	select {
	case <-s.hang:
		return nil, errNetwork
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// TestDurabilityRefused: what the manager cannot give is refused with what it can.
func TestDurabilityRefused(t *testing.T) {
	t.Parallel()
	here := newWorld(t, 1, home.Options{}).dcs["dc1"]
	here.want("201 reserved", "reserve", `{"key":"k","token":"a","durability":"local"}`)
	here.want("201 reserved", "reserve", reserve, "g", "a") // the only data centre is every key's home
	a := here.JSON("POST", "/v1/ledger/reserve", `{"key":"k","token":"a","durability":"region"}`)
	if a.Status != 400 || !strings.Contains(a.Body, `"code":"durability-unavailable"`) || !strings.Contains(a.Body, "must be local or global") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := here.Site.Do("GET", "/v1/ledger/stats", "", ""); !strings.Contains(a.Body, `"durabilities":["local","global"]`) {
		t.Errorf("stats: %s", a.Body)
	}
	a = here.JSON("POST", "/v1/ledger/reserve", `{"key":"k","token":"a","durability":"planet"}`)
	if a.Status != 400 || !strings.Contains(a.Body, `durability: \"planet\": must be local, region or global`) {
		t.Errorf("%d %s", a.Status, a.Body)
	}
}
