package envoydiff

import (
	"testing"

	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/proxytest"
	"github.com/tetratelabs/proxy-wasm-go-sdk/proxywasm/types"
)

// lenient is a filter that Envoy would kill. The SDK's emulator runs it.
type lenient struct {
	types.DefaultVMContext
	types.DefaultPluginContext
	types.DefaultHttpContext
	cas  error // of CAS 0 on a present key
	call error // to a cluster that nobody configured
}

func (f *lenient) OnVMStart(int) types.OnVMStartStatus         { return types.OnVMStartStatusOK }
func (f *lenient) NewPluginContext(uint32) types.PluginContext { return f }
func (f *lenient) OnPluginStart(int) types.OnPluginStartStatus { return types.OnPluginStartStatusOK }
func (f *lenient) NewHttpContext(uint32) types.HttpContext     { return f }
func (f *lenient) OnHttpRequestBody(int, bool) types.Action    { return types.ActionPause }
func (f *lenient) OnHttpRequestHeaders(_ int, _ bool) types.Action {
	proxywasm.DefineCounterMetric("c").Increment(0)
	if err := proxywasm.SetSharedData("k", []byte("v"), 0); err != nil {
		panic(err)
	}
	f.cas = proxywasm.SetSharedData("k", []byte("w"), 0)
	_, f.call = proxywasm.DispatchHttpCall("nowhere", nil, nil, nil, 1000, func(int, int, int) {})
	if err := proxywasm.SendHttpResponse(403, nil, nil, -1); err != nil {
		panic(err)
	}
	return types.ActionContinue
}

// What docs/hostsim.md says of the SDK's own emulator: it differs from Envoy in what TestSharedDataCAS, TestBadCallIsRefused,
// TestSDKIncrementByZeroKills, TestLocalReplyOnRequest and TestRequestTooLarge show of hostsim.
func TestProxytestDiffersFromEnvoy(t *testing.T) {
	f := &lenient{}
	host, reset := proxytest.NewHostEmulator(proxytest.NewEmulatorOption().WithVMContext(f))
	defer reset()
	if got := host.StartPlugin(); got != types.OnPluginStartStatusOK {
		t.Fatal(got)
	}
	stream := host.InitializeHttpContext()
	if got := host.CallOnRequestHeaders(stream, nil, false); got != types.ActionContinue {
		t.Errorf("after a local reply the filter's action is %v", got)
	}
	if f.cas != types.ErrorStatusCasMismatch {
		t.Errorf("CAS 0 on a present key: %v", f.cas)
	}
	if f.call != nil {
		t.Errorf("a call to an unknown cluster: %v", f.call)
	}
	for range 4 {
		host.CallOnRequestBody(stream, make([]byte, 1<<20), false)
	}
	if got := len(host.GetCurrentRequestBody(stream)); got != 4<<20 {
		t.Errorf("%d bytes of a paused body are held", got)
	}
}
