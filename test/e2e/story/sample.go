// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"strings"
)

// fullEnv in the environment makes checks that play a sample play everything.
const fullEnv = "BULKHEAD_FULL"

// seedEnv in the environment chooses the samples; the default is the commit.
const seedEnv = "BULKHEAD_SEED"

// Full tells whether everything is played, and not a sample.
func Full() bool { return os.Getenv(fullEnv) != "" }

// Seed is what chooses the samples: that of the environment, or the commit that
// is checked out.
func Seed(ctx context.Context) string {
	if seed := os.Getenv(seedEnv); seed != "" {
		return seed
	}
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// sample chooses one of n parts by the seed, and prints which.
func (w *World) sample(what string, n int) int {
	i := partOf(what, w.Seed, n)
	fmt.Fprintf(w.Out, "     %s: part %d of %d, chosen by the seed (SEED=%s; %s=1 plays all)\n", what, i+1, n, w.Seed, fullEnv)
	return i
}

func partOf(what, seed string, n int) int {
	h := fnv.New32a()
	h.Write([]byte(what + seed))
	return int(h.Sum32() % uint32(n))
}
