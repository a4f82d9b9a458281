// SPDX-License-Identifier: Apache-2.0

// Command adversary is what attackers and victims of the adversary's table run:
// it makes attempts, and it listens.
//
//	adversary send    attempts, one JSON object a line, from standard input; an answer a line
//	adversary hear    ears, a JSON list on the first line of standard input; "ready", and
//	                  what each heard when standard input ends
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"bulkhead/test/adversary"
	"bulkhead/test/adversary/way"
)

// together is how many attempts are made at a time: most of a table's time is
// spent waiting for connections that do not come about.
const together = 12

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
		return hear(os.Stdin, os.Stdout)
	}
	return fmt.Errorf("say what to do: send or hear")
}

func send(in io.Reader, out io.Writer) error {
	dec := json.NewDecoder(in)
	enc := json.NewEncoder(out)
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, together)
	for {
		var a way.Attempt
		if err := dec.Decode(&a); err == io.EOF {
			break
		} else if err != nil {
			return fmt.Errorf("read an attempt: %w", err)
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			t := adversary.SendResult{ID: a.ID}
			if err := a.Do(); err != nil {
				t.Error = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			_ = enc.Encode(t)
		})
	}
	wg.Wait()
	return nil
}

func hear(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the ears: %w", err)
	}
	var ears []way.Listener
	if err := json.Unmarshal(first, &ears); err != nil {
		return fmt.Errorf("read the ears: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	heard := make([]adversary.Received, len(ears))
	var mu sync.Mutex
	var opened, done sync.WaitGroup
	for i, e := range ears {
		opened.Add(1)
		done.Add(1)
		ready := sync.OnceFunc(opened.Done)
		go func() {
			defer done.Done()
			defer ready()
			ids := map[int]bool{}
			err := e.Listen(ctx, ready, func(id int) {
				mu.Lock()
				defer mu.Unlock()
				if !ids[id] {
					ids[id] = true
					heard[i].IDs = append(heard[i].IDs, id)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				heard[i].Refused = err.Error()
			}
		}()
	}
	opened.Wait()
	fmt.Fprintln(out, "ready")
	// "?" and a line end ask for what was heard so far; the end of the input ends it.
	enc := json.NewEncoder(out)
	for {
		_, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		mu.Lock()
		err = enc.Encode(heard)
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
	return enc.Encode(heard)
}
