package main

import (
	"os"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

func TestPostNeedsAKey(t *testing.T) {
	module, err := os.ReadFile("filter.wasm")
	if err != nil {
		t.Fatal(err)
	}
	h := hostsimtest.Start(t, hostsim.Config{Guest: hostsim.Wasm(module)})
	s := hostsimtest.Open(t, h, 0)
	s.Request(hostsimtest.Post("/payments"), "body")
	s.Settle()
	if got := s.Down.Log(); got != `headers 400 | data "a key is required" end` {
		t.Errorf("the client got %s", got)
	}
	if refused, _ := h.Process().Metric("refused"); refused.Value != 1 {
		t.Errorf("%d requests were refused", refused.Value)
	}
	if logs := h.Logs(); len(logs) != 1 || logs[0].Message != "refused a POST without a key" {
		t.Errorf("the filter logged %v", logs)
	}
	hostsimtest.Healthy(t, h) // no trap, and nothing that is undefined in Envoy
}
