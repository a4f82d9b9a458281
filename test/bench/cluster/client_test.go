// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A watch that the server closes resumes at the last event's version, and skips
// events without the substring.
func TestWatch(t *testing.T) {
	var versions []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version := r.URL.Query().Get("resourceVersion")
		versions = append(versions, version)
		event := func(name string, version int) {
			fmt.Fprintf(w, `{"type":"MODIFIED","object":{"metadata":{"name":%q,"resourceVersion":"%d"},"status":{"conditions":[{"type":"A","status":"True"}]}}}`+"\n", name, version)
		}
		switch version {
		case "1":
			event("a", 2)
			event("other", 3)
		case "3":
			// The server may also close it without an event.
			if len(versions) > 2 {
				event("a", 4)
				event("b", 5)
			}
		}
	}))
	defer server.Close()
	c := &rawClient{server.Client(), server.URL}
	var seen []string
	err := c.watch(context.Background(), "/x", "1", `"name":"`, func(o *object) bool {
		if o.Metadata.Name != "other" && o.allTrue(1) {
			seen = append(seen, o.Metadata.Name)
		}
		return o.Metadata.Name == "b"
	})
	if err != nil || strings.Join(seen, "") != "aab" || strings.Join(versions, " ") != "1 3 3" {
		t.Errorf("events of %v, watched from versions %v: %v", seen, versions, err)
	}
	if err := c.do(context.Background(), http.MethodGet, "/x?resourceVersion=1", "", nil); err != nil {
		t.Error(err)
	}
}

func TestAllTrue(t *testing.T) {
	o := object{}
	if o.allTrue(1) || !o.allTrue(0) {
		t.Error("an object without conditions")
	}
}
