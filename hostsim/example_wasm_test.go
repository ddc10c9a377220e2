package hostsim_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// The module is one that TinyGo built from a filter with the Go SDK: docs/hostsim.md has the command.
func ExampleWasm() {
	module, err := os.ReadFile("../build/guests/sdk.wasm")
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	h, err := hostsim.Start(ctx, hostsim.Config{Guest: hostsim.Wasm(module)})
	if err != nil {
		log.Fatal(err)
	}
	answer, err := hostsimtest.Do(ctx, h, hostsimtest.Request{Headers: hostsimtest.Get("/", "x-do", "reply")}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Status, string(answer.Body))
	if err := h.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: 202 ok
}
