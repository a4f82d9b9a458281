// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bulkhead/test/bench/proc"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// usage is CPU time by process; "others" is that of the rest of the machine.
type usage map[string]time.Duration

const others = "others"

// readUsage reads the CPU time of the processes so far. "others" is the
// machine's total here; since subtracts the processes from it.
func readUsage(pids map[string]int) (usage, error) {
	u := usage{}
	for name, pid := range pids {
		var err error
		if u[name], err = proc.CPU(pid); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	var err error
	u[others], err = proc.MachineCPU()
	return u, err
}

// since returns the CPU time used since before.
func (u usage) since(before usage) usage {
	out := usage{}
	var known time.Duration
	for name := range u {
		out[name] = u[name] - before[name]
		if name != others {
			known += out[name]
		}
	}
	out[others] = max(0, out[others]-known)
	return out
}

// sample is one line of a metrics page.
type sample struct {
	labels map[string]string
	value  float64
}

// parseMetric returns the samples of one metric.
func parseMetric(r io.Reader, name string) ([]sample, error) {
	var out []sample
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := bytes.CutPrefix(lines.Bytes(), []byte(name))
		if !ok || len(rest) == 0 || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		s := sample{labels: map[string]string{}}
		text := strings.TrimPrefix(string(rest), "{")
		for {
			key, after, ok := strings.Cut(text, `="`)
			if !ok {
				break
			}
			end := 0
			for end < len(after) && after[end] != '"' {
				if after[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(after) {
				return nil, fmt.Errorf("metric %s: unterminated label in %q", name, rest)
			}
			s.labels[strings.TrimPrefix(key, ",")] = after[:end]
			text = after[end+1:]
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(text, "}")), 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: value of %q: %w", name, rest, err)
		}
		s.value = v
		out = append(out, s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return out, nil
}

// writes counts write requests by verb, resource and, if refused, status code.
// Verbs are the API server's: APPLY is a server-side apply.
type writes map[string]int

// background are resources that components of a cluster write all the time.
var background = []string{"leases", "events", "flowschemas", "prioritylevelconfigurations"}

func readWrites(ctx context.Context, c *rawClient) (writes, error) {
	resp, err := c.send(ctx, http.MethodGet, "/metrics", "", nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	samples, err := parseMetric(resp.Body, "apiserver_request_total")
	if err != nil {
		return nil, err
	}
	return countWrites(samples)
}

func countWrites(samples []sample) (writes, error) {
	if len(samples) == 0 {
		return nil, errors.New("the API server has no metric apiserver_request_total: writes cannot be counted")
	}
	w := writes{}
	for _, s := range samples {
		switch s.labels["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
			key := s.labels["verb"] + " " + s.labels["resource"]
			if sub := s.labels["subresource"]; sub != "" {
				key += "/" + sub
			}
			if s.labels["code"] >= "300" {
				key += " refused with " + s.labels["code"]
			}
			w[key] += int(s.value)
		}
	}
	return w, nil
}

// since returns the writes made since before.
func (w writes) since(before writes) writes {
	out := writes{}
	for k, n := range w {
		if n > before[k] {
			out[k] = n - before[k]
		}
	}
	return out
}

// split separates the writes that count from background writes.
func (w writes) split() (count, rest writes) {
	count, rest = writes{}, writes{}
	for k, n := range w {
		_, resource, _ := strings.Cut(k, " ")
		resource, _, _ = strings.Cut(resource, "/")
		resource, _, _ = strings.Cut(resource, " ")
		if slices.Contains(background, resource) {
			rest[k] = n
		} else {
			count[k] = n
		}
	}
	return count, rest
}

func (w writes) total() (n int) {
	for _, x := range w {
		n += x
	}
	return n
}

// per formats the writes per network, for n networks.
func (w writes) per(n int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(w)) {
		out = append(out, fmt.Sprintf("%.4g %s", float64(w[k])/float64(n), k))
	}
	if out == nil {
		return "none"
	}
	return strings.Join(out, ", ")
}
