# SPDX-License-Identifier: Apache-2.0
# Measurements of a node's gateway, see docs/performance.md. Included by the
# Makefile at the root of the repository.

.PHONY: bench-node

bench-node: lab-deps lab-bin ## a node's rules, filters and external bridge at 1 to 500 networks (ATTACH=1, BENCH_FLAGS='-sizes=1,10' for a quick run)
	CGO_ENABLED=0 go build -o bin/bench-node ./test/bench/node
	env $$(bin/lab env) bin/bench-node $(if $(ATTACH),-attach) $(BENCH_FLAGS)
