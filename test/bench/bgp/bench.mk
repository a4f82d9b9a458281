# SPDX-License-Identifier: Apache-2.0
# Measurements of route advertisements, see docs/performance.md. Included by the
# Makefile at the root of the repository.

.PHONY: bench-bgp

bench-bgp: lab-deps lab-bin ## RouteAdvertisements over many networks and nodes on a real API server, and the sizes of the managed fabric (BENCH_FLAGS='-networks=50' for a quick run)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/controller
	CGO_ENABLED=0 go build -o bin/bench-bgp ./test/bench/bgp
	env $$(bin/lab env) bin/bench-bgp $(BENCH_FLAGS)
