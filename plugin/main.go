// Command plugin is the gate as a Proxy-Wasm module: build/oncegate.wasm. It is
// built with TinyGo as a reactor, so that the host calls _initialize, which runs
// init, and never main.
package main

import "github.com/oncegate/oncegate/plugin/sdk"

func init() { sdk.Register() }

func main() {}
