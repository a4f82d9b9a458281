// SPDX-License-Identifier: Apache-2.0

// Package sampling tells tests that take too long for every run what to run: everything,
// or a sample that a seed chooses.
package sampling

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"os/exec"
	"strings"
)

// FullEnv in the environment makes tests that run a sample run everything.
const FullEnv = "BULKHEAD_FULL"

// SeedEnv in the environment chooses the samples; the default is the commit.
const SeedEnv = "BULKHEAD_SEED"

// Full tells whether everything is run, and not a sample.
func Full() bool { return os.Getenv(FullEnv) != "" }

// Seed is what chooses the samples: that of the environment, or the commit that
// is checked out.
func Seed(ctx context.Context) string {
	if seed := os.Getenv(SeedEnv); seed != "" {
		return seed
	}
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// Part chooses one of n parts by the seed.
func Part(what, seed string, n int) int { return int(Hash(what+seed) % uint32(n)) }

// Hash spreads similar seeds evenly, as FNV does not.
func Hash(s string) uint32 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint32(sum[:])
}
