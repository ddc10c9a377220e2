package hostsim_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// keyRequired is a filter that refuses POST requests without a key. A filter that is compiled to wasm is given to the host
// as hostsim.Wasm(module).
type keyRequired struct {
	hostsim.DefaultGuest
	host hostsim.HostCalls
}

func (f *keyRequired) OnRequestHeaders(_ uint32, _ int, _ bool) (hostsim.Action, error) {
	method, _ := f.host.GetHeaderMapValue(hostsim.MapRequestHeaders, ":method")
	if _, status := f.host.GetHeaderMapValue(hostsim.MapRequestHeaders, "idempotency-key"); method == "POST" && status != hostsim.StatusOK {
		f.host.SendLocalResponse(400, "no_key", []byte("a key is required"), nil, -1)
		return hostsim.ActionPause, nil
	}
	return hostsim.ActionContinue, nil
}

func Example() {
	ctx := context.Background()
	h, err := hostsim.Start(ctx, hostsim.Config{
		Guest:   hostsim.Native(func(host hostsim.HostCalls) hostsim.Guest { return &keyRequired{host: host} }),
		Workers: 2,
	})
	if err != nil {
		log.Fatal(err)
	}
	upstream := func(hostsimtest.Message) hostsimtest.Response {
		return hostsimtest.Response{Status: 201, Body: []byte("paid")}
	}
	for _, headers := range []hostsim.Headers{
		hostsimtest.Post("/payments"),
		hostsimtest.Post("/payments", "idempotency-key", "order-17"),
	} {
		answer, err := hostsimtest.Do(ctx, h, hostsimtest.Request{Headers: headers}, upstream)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Status, string(answer.Body))
	}
	if err := h.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 400 a key is required
	// 201 paid
}

// allowed is a filter that asks a service before it lets a request pass.
type allowed struct {
	hostsim.DefaultGuest
	host   hostsim.HostCalls
	stream uint32
}

func (f *allowed) OnRequestHeaders(id uint32, _ int, _ bool) (hostsim.Action, error) {
	f.stream = id
	if _, status := f.host.HTTPCall("policy", hostsim.H(":method", "GET", ":path", "/", ":authority", "policy"), nil, nil, 200); status != hostsim.StatusOK {
		return hostsim.ActionContinue, fmt.Errorf("the call was refused: %v", status)
	}
	return hostsim.ActionPause, nil
}

func (f *allowed) OnHTTPCallResponse(_, _ uint32, _, _, _ int) error {
	status, _ := f.host.GetHeaderMapValue(hostsim.MapHTTPCallHeaders, ":status")
	f.host.SetEffectiveContext(f.stream)
	if status == "200" {
		f.host.ContinueStream(hostsim.StreamTypeRequest)
	} else {
		f.host.SendLocalResponse(403, "", []byte("the service said "+status), nil, -1)
	}
	return nil
}

// A filter that calls out meets answers, refusals and timeouts as the test scripts them. Time is the test's own.
func Example_callouts() {
	ctx := context.Background()
	clock := hostsim.NewVirtualClock(hostsimtest.Epoch)
	policy := &hostsimtest.Cluster{} // without a Handler, calls wait for the test
	h, err := hostsim.Start(ctx, hostsim.Config{
		Guest:    hostsim.Native(func(host hostsim.HostCalls) hostsim.Guest { return &allowed{host: host} }),
		Clusters: map[string]hostsim.Cluster{"policy": policy},
		Clock:    clock,
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, play := range []func(*hostsimtest.Call){
		func(call *hostsimtest.Call) { call.Reply(hostsimtest.Answer("200", "")) },
		func(*hostsimtest.Call) { clock.Advance(time.Second) }, // Envoy's timeout is a 504
	} {
		go func() {
			call, err := policy.Next(ctx)
			if err != nil {
				log.Fatal(err)
			}
			play(call)
		}()
		answer, err := hostsimtest.Do(ctx, h, hostsimtest.Request{Headers: hostsimtest.Get("/")}, func(hostsimtest.Message) hostsimtest.Response {
			return hostsimtest.Response{Status: 200, Body: []byte("from upstream")}
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.Status, string(answer.Body))
	}
	if err := h.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 200 from upstream
	// 403 the service said 504
}

// ticker is a filter that counts its ticks.
type ticker struct {
	hostsim.DefaultGuest
	host  hostsim.HostCalls
	ticks uint32
}

func (f *ticker) OnConfigure(uint32, int) (bool, error) {
	f.ticks, _ = f.host.DefineMetric(hostsim.MetricCounter, "ticks")
	f.host.SetTickPeriod(1000)
	return true, nil
}

func (f *ticker) OnTick(uint32) error {
	f.host.IncrementMetric(f.ticks, 1)
	f.host.Log(hostsim.LogInfo, "tick")
	return nil
}

// The VMs of a worker and of the main thread both tick. Process.Metric and Host.Logs tell what the filter counted and logged.
func ExampleVirtualClock() {
	ctx := context.Background()
	clock := hostsim.NewVirtualClock(hostsimtest.Epoch)
	h, err := hostsim.Start(ctx, hostsim.Config{
		Guest: hostsim.Native(func(host hostsim.HostCalls) hostsim.Guest { return &ticker{host: host} }),
		Clock: clock,
	})
	if err != nil {
		log.Fatal(err)
	}
	clock.Advance(3 * time.Second)
	ticks, _ := h.Process().Metric("ticks")
	fmt.Println(ticks.Value, "ticks,", len(h.Logs()), "lines")
	if err := h.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: 6 ticks, 6 lines
}
