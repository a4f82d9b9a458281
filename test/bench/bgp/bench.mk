# SPDX-License-Identifier: Apache-2.0
# Measurements of route advertisements, see docs/performance.md. Included by the
# Makefile at the root of the repository.

.PHONY: bench-bgp

bench-bgp: lab-deps lab-bin ## learned routes on real OVN, RouteAdvertisements over many networks and nodes on a real API server, the sizes of the managed fabric, and in the lab pods without an overlay against pods with Geneve (BENCH_ROUTES=1000, BENCH_FLAGS='-networks=50' for a quick run; ATTACH=1)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/controller
	CGO_ENABLED=0 go build -o bin/bench-bgp ./test/bench/bgp
	CGO_ENABLED=0 go build -o bin/bench-zone ./test/bench/zone
	missed=0; \
	env $$(bin/lab env) unshare -n bin/bench-zone -sizes=0 -empty=0 -wide=0 -remote-pods=0 -flows=false -routes=$${BENCH_ROUTES:-1000,10000} || missed=1; \
	env $$(bin/lab env) bin/bench-bgp $(BENCH_FLAGS) || missed=1; \
	go run ./test/e2e/cmd/demo -run 'throughput of pods' $(if $(ATTACH),-attach) || missed=1; \
	exit $$missed
