# SPDX-License-Identifier: Apache-2.0
# Included by the top-level Makefile. The compiler is pinned to clang-19, because
# its output is committed; bpf-check regenerates it into a temporary directory and
# compares.

.PHONY: bpf-generate bpf-check

bpf-generate:
	go generate ./pkg/loader
	BPF_UPDATE_INSTRUCTIONS=1 go test -count=1 -run TestInstructionCounts ./pkg/loader

bpf-check:
	@command -v clang-19 >/dev/null || { echo "bpf-check: clang-19 not found: apt-get install clang-19 llvm-19 libbpf-dev"; exit 1; }
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	bpf/generate.sh "$$out" && \
	for f in reasons_gen.go $(foreach o,vrfbind probe guard packet unixsock,$(o)_bpfel.go $(o)_bpfel.o); do \
		cmp "$$out/$$f" "pkg/loader/$$f" || { echo "bpf-check: $$f is stale: run make bpf-generate"; exit 1; }; \
	done; echo "bpf-check: generated files are up to date"
