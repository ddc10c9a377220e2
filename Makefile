# `make help` lists what there is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

.PHONY: build
build: build/oncegate.wasm go-binaries

# --- the wasm modules -------------------------------------------------------------------------------------------------
# TinyGo writes a depfile beside each module (tinygo-build.sh), so a module is built again when, and only when, something
# that it is made of has changed. The Go programs are left to `go build`, which knows that better than make.

WASM_TOOLS := $(wildcard plugin/toolchain/*.sh plugin/toolchain/*.json) $(filter-out %_test.go,$(wildcard plugin/wasmcheck/*.go)) go.mod go.sum

# Envoy loads the module over the network in some set-ups, and every worker compiles it.
GATE_MAX_BYTES := 600000

build/oncegate.wasm: build/toolchain/env.sh $(WASM_TOOLS) $(wildcard plugin/*.go)
	plugin/toolchain/tinygo-build.sh --max-bytes $(GATE_MAX_BYTES) $@ plugin

# hostsim's test guests. A guest whose folder has a file build.flags is built with those flags of tinygo-build.sh.
GUESTS := $(patsubst hostsim/testdata/guests/%/main.go,build/guests/%.wasm,$(wildcard hostsim/testdata/guests/*/main.go))

.PHONY: guests
guests: $(GUESTS)

.SECONDEXPANSION:
build/guests/%.wasm: build/toolchain/env.sh $(WASM_TOOLS) $$(wildcard hostsim/testdata/guests/$$*/*)
	plugin/toolchain/tinygo-build.sh $$(cat hostsim/testdata/guests/$*/build.flags 2>/dev/null) $@ hostsim/testdata/guests/$*

-include $(wildcard build/*.wasm.d build/guests/*.wasm.d)

# Finds or builds TinyGo, and installs the packages that takes. Looked at on every make, since a TinyGo release may have
# come to PATH or a package gone; env.sh itself changes only when the answer does.
build/toolchain/env.sh: FORCE
	@plugin/toolchain/setup.sh
.PHONY: FORCE
FORCE:

# --- the programs -----------------------------------------------------------------------------------------------------
.PHONY: go-binaries
go-binaries:
	@go build -buildvcs=false -o build/manager ./manager
	@go build -buildvcs=false -o build/gateway ./hostsim/gateway
	@go build -buildvcs=false -o build/payments ./examples/payments
