// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"context"
	"fmt"
	"os"
	"time"
)

// WaitFile waits for a file or socket that a daemon creates when it is ready.
func WaitFile(path string, limit time.Duration) error {
	_, err := Poll(limit, path, func() (os.FileInfo, error) { return os.Stat(path) })
	return err
}

// Poll calls get until it succeeds.
func Poll[T any](limit time.Duration, what string, get func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		v, err := get()
		if err == nil {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("wait for %s: not within %s: %w", what, limit, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
