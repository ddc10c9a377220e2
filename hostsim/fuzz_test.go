package hostsim_test

import (
	"context"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// FuzzModule: whatever module is loaded, the host starts or says why not, and a stream
// through it comes to an end.
func FuzzModule(f *testing.F) {
	f.Add((&wasmModule{}).ready().bytes())
	f.Add(onRequest(func(fn func(string) []byte) []byte { return logText(fn, 0, 4) }, "env.proxy_log").ready().bytes())
	f.Add(onRequest(func(fn func(string) []byte) []byte { return append(readHeader(fn, 1), 0x1a) }, "env.proxy_get_header_map_value").ready().bytes())
	f.Add(onRequest(func(fn func(string) []byte) []byte {
		return cat(i32const(200), i32const(0), i32const(0), i32const(0), i32const(4), i32const(0), i32const(0), i32const(0), fn("env.proxy_send_local_response"), []byte{0x1a})
	}, "env.proxy_send_local_response").ready().bytes())
	f.Fuzz(func(t *testing.T, module []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		clock := hostsim.NewVirtualClock(hostsimtest.Epoch)
		h, err := hostsim.Start(ctx, hostsim.Config{Guest: hostsim.Wasm(module), CallbackTimeout: 50 * time.Millisecond, MemoryLimit: 1 << 20, Clock: clock})
		if err != nil {
			return
		}
		s := hostsimtest.Open(t, h, 0)
		s.Request(hostsimtest.Post("/", "x", "value"), "body")
		s.Settle()
		if m := s.Up.Message(); m.Headers != nil && m.Reset == "" {
			s.Respond(200, "body")
		}
		s.Settle()
		s.ClientReset()
		if !s.Over() {
			t.Error("the stream is not over")
		}
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}
