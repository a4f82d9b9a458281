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

// A watch that the server ends goes on where it was; what has not the text is
// passed over.
func TestWatch(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version := r.URL.Query().Get("resourceVersion")
		asked = append(asked, version)
		event := func(name string, version int) {
			fmt.Fprintf(w, `{"type":"MODIFIED","object":{"metadata":{"name":%q,"resourceVersion":"%d"},"status":{"conditions":[{"type":"A","status":"True"}]}}}`+"\n", name, version)
		}
		switch version {
		case "1":
			event("a", 2)
			event("other", 3)
		case "3":
			// The server may end it at once, too.
			if len(asked) > 2 {
				event("a", 4)
				event("b", 5)
			}
		}
	}))
	defer server.Close()
	c := &caller{server.Client(), server.URL}
	var seen []string
	err := c.watch(context.Background(), "/x", "1", `"name":"`, func(o *object) bool {
		if o.Metadata.Name != "other" && o.allTrue(1) {
			seen = append(seen, o.Metadata.Name)
		}
		return o.Metadata.Name == "b"
	})
	if err != nil || strings.Join(seen, "") != "aab" || strings.Join(asked, " ") != "1 3 3" {
		t.Errorf("saw %v, asked from %v: %v", seen, asked, err)
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
