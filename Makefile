# Tranche. "make" or "make help" lists what can be made.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# VERSION goes into the binaries and names the images.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BIN := bin
PROGRAMS := tranche-extender tranche-webhook tranche-nodeplugin kubectl-tranche
LDFLAGS := -s -w -X github.com/tranche-dev/tranche/pkg/program.version=$(VERSION)

# Tools run at the versions that their own modules pin. golangci-lint has one
# to itself, since its requirements would raise everybody else's.
HELM := go tool -modfile=tools/go.mod helm
CONTROLLER_GEN := go tool -modfile=tools/go.mod controller-gen
GOLANGCI_LINT := go tool -modfile=tools/lint/go.mod golangci-lint

# What the local cluster looks like; empty means the default.
export SIM_NODES SIM_GPUS SIM_MODELS REAL_NODE REAL_GPUS NATIVE_GANGS EXTENDER_ARGS

# UNIT is every package but those that bring up a cluster.
UNIT = $$(go list ./... | grep -v '/tests/e2e$$')

# SEQUENCES is how many random sequences of events, of a hundred states on
# average, make property tries; CASES is how many nodes and pods.
SEQUENCES ?= 10500
CASES ?= 1000000

# FUZZTIME is how long each fuzz target runs, BENCHTIME each benchmark.
FUZZTIME ?= 30s
BENCHTIME ?= 1s

.PHONY: help
help: ## Print this list
	@echo 'make TARGET [VARIABLE=VALUE]'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: packages ## Build all programs into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/tranche-extender ./cmd/tranche-webhook ./cmd/kubectl-tranche
	# NVML is a C library, so this one needs cgo.
	CGO_ENABLED=1 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/tranche-nodeplugin

.PHONY: image
image: ## Build the container images with docker or podman
	@tools/images.sh $(VERSION)

.PHONY: test
test: packages verify lint unit e2e ## All that CI runs: verify, lint, unit, e2e

.PHONY: unit
unit: packages ## Unit and manifest tests, with the race detector
	CGO_ENABLED=1 go test -race $(UNIT)

.PHONY: e2e
e2e: packages ## End-to-end tests on a real API server, scheduler and kubelet (needs root)
	go test -count=1 -timeout 45m ./tests/e2e/...

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	@go list ./... | while read -r package; do \
	  targets=$$(go test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); \
	  for target in $$targets; do \
	    echo "$$package $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

.PHONY: property
property: ## Compare Filter, Prioritize and rounds with simple oracles in a million random states, and play events in disorder [SEQUENCES CASES]
	go test -count=1 -v -timeout 3h -run '^TestFilterPrioritizeAndRoundsAreARecount$$' ./extender/planner -rapid.checks=$(SEQUENCES)
	go test -count=1 -v -timeout 3h -run '^TestDisorder$$' ./extender/planner -disorder.seeds=$(SEQUENCES)
	go test -count=1 -v -timeout 3h -run '^TestFitFindsAPlacementIfAndOnlyIfThereIsOne$$' ./pkg/placement -rapid.checks=$(CASES)

.PHONY: bench
bench: packages ## Measure on a real control plane, then microbench [BENCH SIM_NODES SIM_GPUS SCHEDULER_QPS ROUNDS QUEUES PENDING ADMIT RECLAIM_NODES SCALE PROFILE, see docs/performance.md]
	go run ./tests/bench
	$(MAKE) --no-print-directory microbench

.PHONY: microbench
microbench: ## Run all Go benchmarks, BENCHTIME (1s) each
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(UNIT)

.PHONY: lint
lint: ## Run golangci-lint
	$(GOLANGCI_LINT) run ./...

.PHONY: format
format: ## Format all Go code
	$(GOLANGCI_LINT) fmt ./...

.PHONY: generate
generate: ## Write generated code, CRDs, install.yaml and reference pages
	$(CONTROLLER_GEN) object crd paths=./pkg/api/... output:object:dir=pkg/api/v1alpha1 output:crd:dir=manifests/crd
	rm -f manifests/chart/crds/*.yaml && mkdir -p manifests/chart/crds && cp manifests/crd/*.yaml manifests/chart/crds/
	@{ echo '# Generated from manifests/chart by "make generate"; change the chart instead.'; \
	   $(HELM) template tranche manifests/chart --namespace tranche-system --include-crds --set namespace.create=true; \
	 } > manifests/install.yaml
	go run ./docs/generate

.PHONY: verify
verify: ## Generate again and fail if anything differs from what is committed
	@tools/verify.sh

.PHONY: cluster-up
cluster-up: packages ## Bring up the local cluster [SIM_NODES SIM_GPUS SIM_MODELS REAL_NODE REAL_GPUS NATIVE_GANGS EXTENDER_ARGS]
	go run ./tests/cluster/cmd/cluster up

.PHONY: cluster-down
cluster-down: ## Remove the local cluster and every trace of it
	go run ./tests/cluster/cmd/cluster down

.PHONY: demo
demo: packages ## Bring up the local cluster and show on real objects what Tranche does
	go run ./tests/demo

# packages installs what go build and the real node need from the system, or
# says what is missing. It costs nothing when all is there.
.PHONY: packages
packages:
	@tools/packages.sh

.PHONY: clean
clean: ## Remove what was built here (the local cluster stays: cluster-down)
	rm -rf $(BIN)
