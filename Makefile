# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets. As root on a fresh Debian machine, `make demo`
# and `make test` install what they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Which samples the tests run: test/e2e/story/sample.go.
export BULKHEAD_SEED ?= $(SEED)
export BULKHEAD_FULL ?= $(FULL)

include bpf/bpf.mk
include test/lab/lab.mk
include test/bench/bgp/bench.mk
include test/bench/cluster/bench.mk
include test/bench/node/bench.mk
include test/bench/zone/bench.mk

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | awk -F':.*## *' '{printf "  %-16s %s\n", $$1, $$2}'

.PHONY: build
build: ## the product's static binaries, into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/controller ./cmd/agent ./cmd/bulkheadctl
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ovn-k8s-cni-overlay ./cmd/cni

.PHONY: build-arm64
build-arm64: ## check that the product compiles for arm64
	GOARCH=arm64 CGO_ENABLED=0 go build -o /dev/null ./cmd/...

# What the image's Debian packages are extracted with.
IMAGE_DEPS := mmdebstrap:mmdebstrap dpkg-deb:dpkg

.PHONY: image
image: ## the container image, amd64 and arm64: the OCI archive bin/bulkhead-VERSION.tar (REFRESH=1 fetches new Debian packages)
	@$(call install_missing,$(IMAGE_DEPS))
	go run ./hack/image $(if $(VERSION),-version=$(VERSION)) $(if $(REFRESH),-refresh)

.PHONY: demo
demo: lab-deps ## the lab, and the story in it as a table of checks (RUN=5 or RUN='pattern', ATTACH=1: on the lab that runs, FULL=1, SEED=)
	go run ./test/e2e/cmd/demo $(if $(RUN),-run '$(RUN)') $(if $(ATTACH),-attach)

.PHONY: conformance
conformance: lab-deps ## in the lab: the network specs of Kubernetes' conformance tests (RUN='pattern', ATTACH=1, FAMILIES=, GATEWAY=, TRANSPORT=)
	go run ./test/e2e/cmd/conformance -families=$(FAMILIES) -gateway=$(GATEWAY) -transport=$(TRANSPORT) -nodes=$(NODES) $(if $(RUN),-run '$(RUN)') $(if $(ATTACH),-attach)

.PHONY: bench-pods
bench-pods: lab-deps ## in the lab: the time until a tenant's pod is ready against that of a pod of the default network (ATTACH=1)
	go run ./test/e2e/cmd/demo -run 'pods of a tenant .* become ready' $(if $(ATTACH),-attach)

# What the tests and the linters need besides Go and the lab.
TEST_DEPS := gcc:gcc /usr/include/stdio.h:libc6-dev nft:nftables ip:iproute2 \
	clang-19:clang-19 llvm-strip-19:llvm-19 /usr/include/bpf/bpf_helpers.h:libbpf-dev

.PHONY: test-deps
test-deps: ## install the Debian packages that the tests and linters need
	@$(call install_missing,$(TEST_DEPS))

.PHONY: test
test: lab-deps test-deps lab-bin ## every test, and a sample of those that take long (SEED=); the last line counts them
	env $$(bin/lab env) go run ./hack/runtests

.PHONY: test-full
test-full: lab-deps test-deps lab-bin ## everything that make test samples, each pair of check and lab option; resumes
	env $$(bin/lab env) go run ./hack/runtests -full

.PHONY: unit
unit: ## the inner loop: no root, no lab
	go test -race -short ./...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s)
	@targets=0; for p in $$(go list ./...); do \
	  list=$$(go test -short -list '^Fuzz' $$p); \
	  for f in $$(sed -n '/^Fuzz/p' <<<"$$list"); do \
	    echo "$$p $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-10s} $$p; targets=$$((targets+1)); \
	  done; \
	done; echo "$$targets fuzz targets"; [ $$targets -gt 0 ]

.PHONY: lint
lint: bpf-check ## vet, staticcheck, gofmt, generated files up to date
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); \
	 if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...
	@hack/check-generated.sh

.PHONY: generate
generate: bpf-generate ## everything that is generated from something else
	go generate ./api/... ./pkg/...
