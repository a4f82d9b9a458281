// SPDX-License-Identifier: Apache-2.0

// Package report prints the figures of a benchmark with their targets.
package report

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Figure is one line of the table.
type Figure struct {
	Name, Value string
	Target      string // empty if the figure is only shown
	Met         bool
	Reference   string // OVN-Kubernetes' value
}

// Verdict says whether the target is met. It is empty without a target.
func (f Figure) Verdict() string {
	switch {
	case f.Target == "":
		return ""
	case f.Met:
		return "met"
	}
	return "MISSED"
}

// Missed counts the missed targets.
func Missed(fs []Figure) (n int) {
	for _, f := range fs {
		if f.Verdict() == "MISSED" {
			n++
		}
	}
	return n
}

// Print prints the figures as a table.
func Print(w io.Writer, fs []Figure) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tvalue\ttarget\t\treference")
	for _, f := range fs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", f.Name, f.Value, f.Target, f.Verdict(), f.Reference)
	}
	return t.Flush()
}

// Progress returns a function that prints a step of the run to w, with the time since
// the call of Progress.
func Progress(w io.Writer) func(format string, args ...any) {
	start := time.Now()
	return func(format string, args ...any) {
		fmt.Fprintf(w, "%6.1f s  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

// Ratio returns a/b, and 0 if b is 0: a value that was not measured.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Millis formats d in milliseconds.
func Millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", d.Seconds()*1000) }

// Seconds formats d in seconds.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// Megabytes formats n bytes.
func Megabytes(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/(1<<20)) }
