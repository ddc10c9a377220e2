module github.com/oncegate/oncegate/examples/filter

go 1.25.0

replace github.com/oncegate/oncegate/hostsim => ../../hostsim

require (
	github.com/oncegate/oncegate/hostsim v0.1.0
	github.com/tetratelabs/proxy-wasm-go-sdk v0.24.0
)

require (
	github.com/tetratelabs/wazero v1.12.0 // indirect
	golang.org/x/sys v0.44.0 // indirect
)
