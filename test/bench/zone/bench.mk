# SPDX-License-Identifier: Apache-2.0
# Measurements of the zone role, see docs/performance.md. Included by the
# Makefile at the root of the repository.

.PHONY: bench-zone

bench-zone: lab-deps lab-bin ## the zone role's and OVN's cost of networks against the targets (BENCH_FLAGS='-sizes=2,10 -empty=0 -wide=0 -remote-pods=0' for a quick run)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/controller
	CGO_ENABLED=0 go build -o bin/bench-zone ./test/bench/zone
	env $$(bin/lab env) bin/bench-zone $(BENCH_FLAGS)
