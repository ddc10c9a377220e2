package gatetest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/manager/api"
)

func TestBadConfigurationRefusesTheStart(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		for config, field := range map[string]string{
			`{"max_entires":5}`:                      "max_entires",
			`{"manager":{"timeout_ms":"soon"}}`:      "manager.timeout_ms",
			`{"match":[{"path_prefix":"no slash"}]}`: "match[0].path_prefix",
			`{"mode":"psychic"}`:                     "mode",
			`{"key":{"json_path":"a"}}`:              "key.json_path",
			`{"pending_ttl_seconds":-1}`:             "pending_ttl_seconds",
			`not json`:                               "JSON",
		} {
			r, err := start(t, guest, Options{Config: config})
			if err == nil {
				t.Errorf("%s: the plugin started", config)
				_ = r.Host.Close(context.Background())
				continue
			}
			if log := r.log.String(); !strings.Contains(log, field) {
				t.Errorf("%s: the log does not name %s:\n%s", config, field, log)
			}
		}
	})
}

// The token for the manager comes from the environment of the VM, and a variable that cannot be used refuses the start.
func TestTokenOfTheEnvironment(t *testing.T) {
	const variable, token = "ONCEGATE_GATE_TOKEN", "a-token-that-nobody-sees"
	o := Options{Config: `{"manager":{"auth_token_env":"` + variable + `"}}`}
	each(t, func(t *testing.T, guest hostsim.Source) {
		ok := o
		ok.Environment = map[string]string{"A": "a", variable: token, variable + "_2": "other", "Z": ""}
		r := NewRig(t, guest, ok)
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "done")
		x.Response()
		x.Over()
		want(t, "calls", len(r.Manager.Calls()), 2)
		for _, call := range r.Manager.Calls() {
			want(t, "authorization", call.Authorization, "Bearer "+token)
		}
		if log := r.log.String(); strings.Contains(log, token) {
			t.Errorf("the token is in the log:\n%s", log)
		}
		for value, why := range map[string]string{"": "is empty", token + " ": "(not shown)", strings.Repeat("x", 4097): "(not shown)", "missing": "is not in the VM's environment"} {
			bad := o
			if value != "missing" {
				bad.Environment = map[string]string{variable: value}
			}
			r, err := start(t, guest, bad)
			if err == nil {
				t.Errorf("%.40q: the plugin started", value)
				_ = r.Host.Close(context.Background())
				continue
			}
			log := r.log.String()
			if !strings.Contains(log, "manager.auth_token_env: "+variable) || !strings.Contains(log, why) || value != "" && value != "missing" && strings.Contains(log, value) {
				t.Errorf("%.40q: the log is\n%.2000s", value, log)
			}
		}
	})
}

func TestStartLeavesLittleBehind(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		r := NewRig(t, guest, Options{Workers: 3})
		r.Clock.Advance(time.Minute)
		if keys, _ := r.Host.SharedDataSize(); keys > 4 {
			t.Errorf("%d keys of shared data before the first request", keys)
		}
		want(t, "calls", len(r.Manager.Calls()), 0)
	})
}

// An upgraded filter finds the records of the older one.
func TestTwoGenerationsInOneProcess(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		a := NewRig(t, guest, Options{})
		x := a.Send(Request{Key: "k"})
		x.Answer(200, "first")
		x.Response()
		y := a.Send(Request{Key: "pending"})
		y.Upstream.AwaitHeaders(t)
		b := NewRig(t, guest, Options{Process: a.Process, Manager: a.Manager, Clock: a.Clock})
		want(t, "cached", b.Send(Request{Key: "k"}).Response().Body, "first")
		z := b.Send(Request{Key: "pending"})
		b.Settle()
		want(t, "upstream called", z.Upstream.Begun(), false)
		y.Answer(200, "second")
		want(t, "waiter in the new one", z.Response().Body, "second")
	})
}

// A plugin that is being removed first reports its outcomes to the ledger.
func TestShutdownWaitsForOutcomes(t *testing.T) {
	each(t, func(t *testing.T, guest hostsim.Source) {
		// Time runs fast while the host closes.
		r := NewRig(t, guest, Options{Config: `{"pending_ttl_seconds":31622400,"committed_ttl_seconds":31622400}`})
		r.Manager.FailAll(api.PathCommit, Fault{Close: 14})
		x := r.Send(Request{Key: "k"})
		x.Answer(200, "done")
		x.Response()
		x.Over()
		r.Manager.FailAll(api.PathCommit, Fault{})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		state, _ := r.Manager.State("k")
		want(t, "state", state, api.StateCommitted)
	})
}
