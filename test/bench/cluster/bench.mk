# SPDX-License-Identifier: Apache-2.0
# Measurements of the cluster role, see docs/performance.md. Included by the
# Makefile at the root of the repository.

.PHONY: bench-cluster

bench-cluster: lab-deps lab-bin ## the cluster role's speed against its targets (BENCH_FLAGS='-networks=50 -big=0' for a quick run)
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/controller
	CGO_ENABLED=0 go build -o bin/bench-cluster ./test/bench/cluster
	env $$(bin/lab env) bin/bench-cluster $(BENCH_FLAGS)
