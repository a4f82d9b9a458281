// SPDX-License-Identifier: Apache-2.0

package story

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
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

// costlyInSample is how many of the costly checks a sample has.
const costlyInSample = 1

// Sample leaves out all but some of the costly checks, chosen by the seed, and
// prints what it leaves out.
func Sample(checks []Check, seed string, out io.Writer) []Check {
	var costly []string
	for _, c := range checks {
		if c.Costly {
			costly = append(costly, c.Name())
		}
	}
	slices.SortFunc(costly, func(a, b string) int { return cmp.Compare(hash(a+seed), hash(b+seed)) })
	return slices.DeleteFunc(slices.Clone(checks), func(c Check) bool {
		omit := slices.Index(costly, c.Name()) >= costlyInSample
		if omit {
			fmt.Fprintf(out, "not in the sample of SEED=%s: %s\n", seed, c.Name())
		}
		return omit
	})
}

func partOf(what, seed string, n int) int {
	return int(hash(what+seed) % uint32(n))
}

// hash spreads similar seeds evenly, as FNV does not.
func hash(s string) uint32 {
	sum := sha256.Sum256([]byte(s))
	return binary.BigEndian.Uint32(sum[:])
}
