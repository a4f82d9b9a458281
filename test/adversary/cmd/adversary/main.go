// SPDX-License-Identifier: Apache-2.0

// Command adversary runs in the attackers and victims of the adversary's table:
// it makes attempts and listens for them.
//
//	adversary send    reads attempts from standard input, one JSON object per line, and
//	                  prints one result per attempt
//	adversary listen  reads listeners from the first line of standard input, a JSON list;
//	                  prints "ready" once all are open, and what each received so far at
//	                  each further line and at the end of standard input
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"bulkhead/test/adversary"
	"bulkhead/test/adversary/attack"
)

// parallelism is the number of concurrent attempts: most of a table's time is
// spent waiting for connections that are never established.
const parallelism = 12

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "adversary:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "send":
		return send(os.Stdin, os.Stdout)
	case len(args) == 1 && args[0] == "listen":
		return listen(os.Stdin, os.Stdout)
	}
	return errors.New("usage: adversary send|listen")
}

func send(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	enc := json.NewEncoder(out)
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallelism)
	made := 0
	var failed error // to print a result
	for {
		var a attack.Attempt
		if err := dec.Decode(&a); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("read an attempt: %w", err)
		}
		if err := a.Validate(); err != nil {
			return fmt.Errorf("attempt %d: %w", a.ID, err)
		}
		made++
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t := adversary.SendResult{ID: a.ID}
			if err := a.Do(); err != nil {
				t.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, enc.Encode(t))
		})
	}
	wg.Wait()
	if made == 0 {
		return errors.New("standard input has no attempts")
	}
	return failed
}

func listen(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the listeners: %w", err)
	}
	var listeners []attack.Listener
	if err := json.Unmarshal(first, &listeners); err != nil {
		return fmt.Errorf("read the listeners: %w", err)
	}
	if len(listeners) == 0 {
		return errors.New("the list of listeners is empty")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	received := make([]adversary.Received, len(listeners))
	var mu sync.Mutex
	var opened, done sync.WaitGroup
	for i, l := range listeners {
		opened.Add(1)
		done.Add(1)
		ready := sync.OnceFunc(opened.Done)
		go func() {
			defer done.Done()
			defer ready()
			ids := map[int]bool{}
			err := l.Listen(ctx, ready, func(id int) {
				mu.Lock()
				defer mu.Unlock()
				if !ids[id] {
					ids[id] = true
					received[i].IDs = append(received[i].IDs, id)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				received[i].Refused = err.Error()
			}
		}()
	}
	opened.Wait()
	fmt.Fprintln(out, "ready")
	enc := json.NewEncoder(out)
	for {
		_, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		mu.Lock()
		err = enc.Encode(received)
		mu.Unlock()
		if err != nil {
			return err
		}
	}
	cancel()
	ended := make(chan struct{})
	go func() { done.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
	}
	mu.Lock()
	defer mu.Unlock()
	return enc.Encode(received)
}
