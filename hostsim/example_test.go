package hostsim_test

import (
	"context"
	"fmt"
	"log"

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
