#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Generates the files of pkg/loader that derive from bpf/: generate.sh OUTPUT_DIR
set -eu
out=$(realpath "$1")
cd "$(dirname "$0")"
# <asm/types.h> comes from the build machine's uapi headers; its types are the same everywhere.
multiarch=/usr/include/$(uname -m)-linux-gnu

go run bulkhead/pkg/loader/internal/reasons/gen bh_reasons.h "$out/reasons_gen.go"
b2g() {
	go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel \
		-go-package loader -output-dir "$out" "$@" -- -O2 -g -Wall -Werror -mcpu=v3 -I"$multiarch"
}
b2g -type bh_event vrfbind vrfbind.c
b2g -type bh_sock -type bh_told_key probe probe.c
b2g guard guard.c
b2g packet packet.c
b2g unixsock unix.c
