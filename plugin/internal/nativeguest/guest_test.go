package nativeguest

import (
	"testing"

	"github.com/oncegate/oncegate/hostsim"
)

// oneValue is a host with one shared value.
type oneValue struct {
	hostsim.HostCalls
	stored []byte
}

func (h *oneValue) GetSharedData(string) ([]byte, uint32, hostsim.Status) {
	return h.stored, 1, hostsim.StatusOK
}

// The cache changes a region's record in place before it stores it. Other threads read the stored one meanwhile.
func TestChangedValueIsNotTheStoredOne(t *testing.T) {
	calls := &oneValue{stored: []byte("stored")}
	value, _, _ := (&host{HostCalls: calls}).Get("k", nil)
	copy(value, "change")
	if string(calls.stored) != "stored" {
		t.Errorf("the stored value became %q", calls.stored)
	}
}
