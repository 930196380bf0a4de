# Kube-Semaphore. `make` alone says what there is.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PROGRAMS := $(notdir $(wildcard cmd/*))
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
MODULE   := github.com/kube-semaphore/kube-semaphore
LDFLAGS  := -s -w -X $(MODULE)/internal/process.number=$(VERSION) -X $(MODULE)/internal/process.revision=$(REVISION)
GO       ?= go
# sudo may set a PATH without it.
export PATH := $(PATH):/usr/local/go/bin
# A number of runs, not a time: with a time a busy machine fails for no fault
# (golang/go#75804, mended in Go 1.27).
FUZZTIME ?= 50000x
# Packages whose branches guide the fuzzer: ours and the decoders'. go test -fuzz counts all
# linked packages' branches, and reads the counters after each run, which took ten times as
# long as the run. Packages that import a decoder are compiled again: DECODERS= avoids that.
DECODERS ?= encoding sigs.k8s.io
FUZZED = $(foreach of,$(MODULE) $(DECODERS),-gcflags=$(of)/...=-d=libfuzzer)

.PHONY: help
help: ## list what there is
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The flags are those of tools, so that packages that our programs share with the control
# planes, a third of them, are compiled once.
demo demo-down: export CGO_ENABLED := 0
demo demo-down: export GOFLAGS := -trimpath -gcflags=all=-dwarf=false $(GOFLAGS)

.PHONY: demo
demo: ## two clusters on this machine, encrypted, end to end (root); KEEP=1 leaves it running, RELAY=1 installs semaphore-relay, OVERLAP=1 joins clusters with equal pod subnets
	@./tools/deps demo
	@$(GO) -C tools run ./build etcd kube-apiserver kubectl kube-proxy coredns >/dev/null
	@echo "compiling the demo (half a minute at the first time)"
	$(GO) run ./e2e/demo $(if $(KEEP),-keep) $(if $(RELAY),-relay) $(if $(OVERLAP),-overlap)

.PHONY: demo-down
demo-down: ## remove what `make demo KEEP=1` left
	$(GO) run ./e2e/demo -down

.PHONY: test
test: ## the gate: what must pass before a change lands (root); PARTS="unit demo" for some of it
	.ci/run $(PARTS)

.PHONY: test-all
test-all: ## what must pass before a release, an hour and more (root); SHARDS="kernel fuzz" for some of it
	.ci/run $(if $(SHARDS),deps $(SHARDS),all)

.PHONY: flakes
flakes: deps ## tests of the packages changed since a revision, 20 times under load (root); SINCE=REV
	.ci/flakes $(SINCE)

# Product is what is shipped: all Go but tests and what serves only tests, benchmarks and releases.
.PHONY: size
size: ## lines of Go by folder: product, tests, and what is neither; comments and empty lines count
	@git ls-files -z '*.go' | xargs -0 wc -l | awk ' \
	  $$2 == "total" { next } \
	  { split($$2, part, "/"); folder = part[1]; kind = "product" } \
	  $$2 ~ /_test\.go$$/ { kind = "tests" } \
	  $$2 !~ /_test\.go$$/ && $$2 ~ /^(e2e|tools|internal\/testing)\// { kind = "support" } \
	  { lines[folder, kind] += $$1; sum[kind] += $$1; folders[folder] } \
	  END { \
	    printf "%-10s %8s %8s %8s\n", "", "product", "tests", "support"; \
	    for (f in folders) printf "%-10s %8d %8d %8d\n", f, lines[f, "product"], lines[f, "tests"], lines[f, "support"] | "sort"; \
	    close("sort"); \
	    printf "%-10s %8d %8d %8d\n", "all", sum["product"], sum["tests"], sum["support"] }'

.PHONY: words
words: ## words that CONTRIBUTING.md bans, and how many of them 1,000 comment lines have
	$(GO) test -count 1 -run '^TestWords$$' -v ./docs

.PHONY: test-fast
test-fast: ## tests that need neither root nor a cluster: the inner loop
	$(GO) test -short ./...
	$(GO) -C tools test -short ./...
	@[ "$$(id -u)" = 0 ] || unshare --user --map-root-user --net true 2>/dev/null || \
	  echo "NOT RUN: tests in network namespaces, which need root here: no user namespaces" >&2
	@[ -w /dev/net/tun ] || echo "NOT RUN: tests of TUN devices, which need root here: /dev/net/tun can't be opened" >&2

.PHONY: check
check: ## one package, in under a minute: format, vet and tests with -race; PKG=./mirror
	@[ -n "$(PKG)" ] || { echo "say which package: make check PKG=./mirror" >&2; exit 1; }
	@unformatted=$$(gofmt -l "$(PKG)"); [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted" >&2; exit 1; }
	$(GO) vet "$(PKG)"
	$(GO) test -race -short "$(PKG)"

.PHONY: test-kernel
test-kernel: deps ## tunnel, route, agent and first contact tests against kernel WireGuard in an emulated machine (root); USERSPACE=no without those of the other backend
	@[ "$(USERSPACE)" != no ] || echo "left out: tests that are about the userspace backend alone, which run without an emulated machine, too"
	$(GO) run ./e2e/kernel -timeout 1h -test-timeout 20m $(if $(filter no,$(USERSPACE)),-args '-test.skip=/^userspace(_and_userspace)?$$') ./tunnel ./routes ./e2e/contact \
	  './agent:TestPaths|RestartsGoUnnoticed|ListenPortsChangePlaces|BackendChangesUnderTraffic|BesideTheOriginal|ListenPortInUse|AgentsTakeTurns|BadRollouts|VirtualSubnets'
	$(GO) run ./e2e/kernel -programs kube-proxy,iptables,ipset -test-timeout 5m -run TestHostReachesRemotePodsThroughIPVS ./routes
	$(GO) run ./e2e/kernel -programs iptables -test-timeout 10m -run 'TestInputFirewalls|TestForwardingSwitchedOff|TestICMPErrors' ./agent
	$(GO) run ./e2e/kernel -append ipv6.disable=1 -run 'ListenPorts|TestTraffic|IPv6' ./tunnel ./routes

.PHONY: e2e
e2e: deps ## scenario tests only (root)
	$(GO) test -race -count 1 -timeout 30m $$($(GO) list ./e2e/... | grep -v '/e2e/kubelet$$')

.PHONY: e2e-kubelet
e2e-kubelet: deps ## installed by the manifests on real kubelets: rollouts, kills, taking out (root); ROLLOUTS=20 RATE=10000 for more, THREE=1 for three clusters
	$(GO) test -v -count 1 -timeout 1h ./e2e/kubelet -args $(if $(ROLLOUTS),-rollouts $(ROLLOUTS)) $(if $(RATE),-rate $(RATE)) $(if $(THREE),-three)

.PHONY: e2e-upgrade
e2e-upgrade: deps ## from the release before to this one and back, on real kubelets (root; needs history); FROM=REVISION for another
	$(GO) test -v -count 1 -timeout 1h -run '^TestUpgrade$$' ./e2e/kubelet -args -from $(or $(FROM),before) $(if $(RATE),-rate $(RATE))

.PHONY: e2e-doctor
e2e-doctor: deps ## the faults that doctor names, on real kubelets (root); takes 40 minutes; FAULTS=REGEXP for some of them
	$(GO) test -v -count 1 -timeout 2h -run '^TestDoctorScore$$' ./e2e/kubelet -args -faults '$(or $(FAULTS),.)'

.PHONY: bench
bench: deps ## speed, each line a ratio against something run beside it (root)
	$(GO) run ./e2e/bench
	$(GO) run ./e2e/bench/packets
	$(GO) run ./e2e/bench/mirror
	$(GO) run ./e2e/bench/policy
	$(GO) test -count 1 -run CostOfProbes -v ./tunnel -args -probe-seconds=20 | grep 'of a core'
	$(GO) test -run '^$$' -bench Paths -benchtime 300x ./peers/paths | grep core

.PHONY: plots
plots: ## draw docs/images/bench-*.svg from the figures in docs/benchmarks, which -json of the benchmarks appends to
	$(GO) run ./e2e/bench/plot docs/benchmarks/*.jsonl

.PHONY: image-check
image-check: deps ## build the image upon a stand-in base and run its programs (root); ARCH=arm64 for another
	$(GO) -C tools run ./release/image $(if $(ARCH),-arch $(ARCH))

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (50000x)
	@programs=$$(mktemp -d); trap 'rm -rf "$$programs"' EXIT; cache=$$($(GO) env GOCACHE)/fuzz/$(MODULE); \
	grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | while read -r dir; do \
	  $(GO) test -c -ldflags=-w $(FUZZED) -o "$$programs/fuzz.test" "$$dir"; \
	  grep -h -o '^func Fuzz[A-Za-z0-9]*' "$$dir"/*_test.go | cut -d ' ' -f 2 | while read -r name; do \
	    echo "fuzz $$dir $$name"; \
	    (cd "$$dir"; "$$programs/fuzz.test" -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzztime $(FUZZTIME) \
	      -test.fuzzminimizetime 10x -test.fuzzcachedir "$$cache/$${dir#./}"); \
	  done; \
	done

.PHONY: build
build: ## the programs, into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...
	for name in semaphore-policy semaphore-relay semaphore-service-mirror semaphore-tokens; do ln -sf semaphore-controllers bin/$$name; done

.PHONY: lint
lint: ## tidy modules and golangci-lint, which vets, too
	for module in . tools; do $(GO) -C $$module mod tidy -diff; done
	lint=$$($(GO) -C tools run ./build golangci-lint); for module in . tools; do (cd $$module; "$$lint" run --allow-parallel-runners ./...); done

.PHONY: settings
settings: ## docs/settings.md, from internal/config
	$(GO) test ./docs -run TestSettingsPage -update

.PHONY: manifests
manifests: ## the folders of deploy for kubectl apply -k, from deploy/chart, and the schema of its values, from internal/config
	$(GO) test ./deploy -run 'TestSchema|TestManifests' -update

.PHONY: fmt
fmt: ## format everything
	lint=$$($(GO) -C tools run ./build golangci-lint); for module in . tools; do (cd $$module; "$$lint" fmt ./...); done

.PHONY: deps
deps: ## what tests, demo and benchmarks need from Debian
	@./tools/deps

.PHONY: sbom
sbom: ## bill of materials of the programs, into bin/
	@mkdir -p bin
	$(GO) -C tools run ./release sbom -version $(VERSION) -o bin/sbom.cdx.json

.PHONY: licences
licences: ## whose code the programs link, on which terms; fails on what we can't pass on
	@$(GO) -C tools run ./release licences

.PHONY: release-notes
release-notes: ## the newest section of CHANGELOG.md
	@$(GO) -C tools run ./release notes

.PHONY: dist
dist: ## archives of semaphorectl for Linux, macOS and Windows, into dist/; URL=https://... of that folder adds krew's manifest
	$(GO) -C tools run ./release tool -version $(VERSION) $(if $(URL),-url $(URL))

.PHONY: release
release: ## all files of a release that need no registry, into dist/; VERSION=v1.2.3 IMAGE=name@sha256:... URL=https://...
	$(GO) -C tools run ./release all -version $(VERSION) $(if $(IMAGE),-image $(IMAGE)) $(if $(URL),-url $(URL))

.PHONY: vulnerabilities
vulnerabilities: ## known vulnerabilities that our code reaches; says so when it can't ask
	@$(GO) -C tools run ./release vulnerabilities

.PHONY: clean
clean: ## remove bin/ and dist/
	rm -rf bin dist
