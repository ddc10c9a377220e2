package hostsim_test

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// environGuest logs its environment when it is configured.
type environGuest struct {
	hostsim.DefaultGuest
	calls hostsim.HostCalls
}

func (g *environGuest) OnConfigure(uint32, int) (bool, error) {
	g.calls.Log(hostsim.LogInfo, strings.Join(g.calls.Environ(), "|"))
	return true, nil
}

func TestNativeGuestsHaveTheEnvironment(t *testing.T) {
	r := newRig(t, hostsim.Native(func(calls hostsim.HostCalls) hostsim.Guest { return &environGuest{calls: calls} }))
	r.start(hostsim.Config{Environment: map[string]string{"B": "2=2", "A": ""}})
	for _, thread := range []string{"canary", "main", "worker-0"} {
		r.wantLog(thread, "A=|B=2=2")
	}
}

// WASI tells how many variables there are and how long they are, then writes them with a pointer to each. What does not
// fit into memory is EFAULT.
func TestWasmGuestsHaveTheEnvironment(t *testing.T) {
	const sizes, get = "wasi_snapshot_preview1.environ_sizes_get", "wasi_unstable.environ_get"
	m := onRequest(func(fn func(string) []byte) []byte {
		// A letter for each answer: 'A' + errno.
		call := func(at, a, b uint32, name string) []byte {
			return cat(i32const(at), i32const(a), i32const(b), fn(name), i32const(uint32('A')), []byte{0x6a, 0x3a, 0, 0})
		}
		return cat(
			call(2000, 1024, 1028, sizes), call(2001, 1100, 1200, get),
			call(2002, 65534, 1028, sizes), call(2003, 65534, 1200, get), call(2004, 1300, 65530, get),
			logText(fn, 1024, 8), logText(fn, 1100, 8), logText(fn, 1200, 11), logText(fn, 2000, 5),
		)
	}, sizes, get, "env.proxy_log")
	r := newRig(t, m.source())
	r.start(hostsim.Config{Environment: map[string]string{"B": "2=2", "A": "123"}})
	s := hostsimtest.Open(t, r.h, 0)
	s.Request(hostsimtest.Get("/"))
	r.wantLog("worker-0", "\x02\x00\x00\x00\x0c\x00\x00\x00", "\xb0\x04\x00\x00\xb6\x04\x00\x00", "A=123\x00B=2=2", "AAVVV")
}

func TestBadEnvironmentsAreRefused(t *testing.T) {
	for name, value := range map[string]string{"": "", "A=B": "", "A\x00": "", "A": "\x00"} {
		r := newRig(t, nativeScript())
		if got := r.startError(hostsim.Config{Environment: map[string]string{name: value}}); !strings.Contains(got, "Config.Environment") {
			t.Errorf("%q=%q: %s", name, value, got)
		}
	}
}
