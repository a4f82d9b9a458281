// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
)

// fakeNetprobe replies to requests by what their first target says, until its input or
// ctx ends.
func fakeNetprobe(ctx context.Context, o remotecommand.StreamOptions) error {
	ended := make(chan error, 1)
	go func() {
		for dec, held := json.NewDecoder(o.Stdin), ""; ; {
			var q request
			if err := dec.Decode(&q); err != nil {
				ended <- nil
				return
			}
			text := fmt.Sprintf(`{"id":%d,"results":[{"target":%q,"ok":true}]}`+"\n", q.ID, q.Targets[0])
			switch q.Targets[0] {
			case "pair": // two requests, replied to in reverse order
				if held == "" {
					held = text
					continue
				}
			case "exit":
				fmt.Fprint(o.Stderr, "killed\n")
				ended <- errors.New("exit 137")
				return
			case "garbage":
				text = "Segmentation fault\n"
			case "error":
				text = fmt.Sprintf(`{"id":%d,"error":"malformed"}`, q.ID)
			case "few":
				text = fmt.Sprintf(`{"id":%d}`, q.ID)
			case "never":
				text = ""
			}
			fmt.Fprint(o.Stdout, text+held)
			held = ""
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestProber(t *testing.T) {
	ask := func(p *prober, target string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if target == "never" {
			ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
		}
		defer cancel()
		got, err := p.ask(ctx, time.Second, []string{target})
		if err == nil && (len(got) != 1 || got[0].Target != target || !got[0].OK) {
			err = fmt.Errorf("results %v of another target", got)
		}
		return err
	}
	for target, want := range map[string]string{
		"plain": "", "error": "malformed", "few": "0 results for 1 targets", "never": "context deadline exceeded",
		"exit": "ended before it replied: exit 137: killed", "garbage": "ended before it replied: context canceled",
	} {
		p := startProber(t.Context(), fakeNetprobe)
		for range 2 { // a second request fares the same
			if err := ask(p, target); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", target, err, want)
			}
		}
		ended := strings.HasPrefix(want, errProberEnded.Error())
		if p.hasEnded() != ended {
			t.Errorf("%s: ended %v", target, !ended)
		}
		p.end()
		<-p.ended
		if err := ask(p, "plain"); !errors.Is(err, errProberEnded) {
			t.Errorf("%s: after its end: %v", target, err)
		}
	}
	p := startProber(t.Context(), fakeNetprobe)
	defer p.end()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := ask(p, "pair"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(p.waiting) > 0 {
		t.Errorf("%d requests wait still", len(p.waiting))
	}
}
