// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// request is one line of answer's input.
type request struct {
	ID            int      `json:"id"`
	TimeoutMillis int64    `json:"timeoutMillis"` // of each target
	Targets       []string `json:"targets"`
}

// reply is one line of answer's output: the results in the order of the targets, or an
// error.
type reply struct {
	ID      int      `json:"id"`
	Results []result `json:"results,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// answer checks what each request of in names, requests side by side, and writes a reply
// to each, until in ends.
func answer(ctx context.Context, in io.Reader, out io.Writer) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	for dec := json.NewDecoder(in); ; {
		var q request
		if err := dec.Decode(&q); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		wg.Go(func() {
			r := reply{ID: q.ID}
			var err error
			if r.Results, err = checkAll(ctx, q.Targets, time.Duration(q.TimeoutMillis)*time.Millisecond); err != nil {
				r.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			_ = enc.Encode(r) // if nobody reads the replies, the input ends too
		})
	}
}
