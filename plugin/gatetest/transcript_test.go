package gatetest

import (
	"regexp"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// The golden files show every host call of the shipped module for a first request
// and its retry, in both modes, for review. After an intended change,
// go test -run Transcript -update writes them again.
func TestTranscript(t *testing.T) {
	guest, err := wasm()
	if err != nil {
		t.Fatalf("the wasm build of the gate cannot be read (run: make %s): %v", wasmFile, err)
	}
	for name, o := range map[string]Options{
		"headers-mode": {Config: `{"max_entries":8}`},
		"body-mode":    {Config: `{"max_entries":8,"mode":"body"}`, BodyMode: true},
	} {
		t.Run(name, func(t *testing.T) {
			o.Recorder, o.Seed = new(hostsim.Recorder), 1
			r := NewRig(t, guest, o)
			o.Recorder.Reset()
			q := Request{Key: "host1:1:a1b2c3d4e5f6a7b8", Body: `{"amount":1}`}
			x := r.Send(q)
			x.Answer(201, `{"n":1}`, "content-type: application/json")
			x.Response()
			x.Over()
			y := r.Send(q)
			y.Response()
			y.Over()
			r.Settle()
			hostsimtest.Golden(t, name, ledgerID.ReplaceAllString(o.Recorder.Text("worker-0"), "ID"))
		})
	}
}

// ledgerID is the id that the ledger of a test's manager draws at random.
var ledgerID = regexp.MustCompile(`[0-9a-f]{32}\.1\.0`)
