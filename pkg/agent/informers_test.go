// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	nadclient "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/client/clientset/versioned"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"bulkhead/pkg/kube"
)

// No informer accepts a first list of any age. The server cannot stream lists.
func TestFirstListsAreConsistent(t *testing.T) {
	t.Setenv("KUBE_FEATURE_WatchListClient", "false") // read once for all tests
	var mu sync.Mutex
	lists := map[string]bool{} // by path: with resource version 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`))
		if q := r.URL.Query(); !q.Has("watch") {
			mu.Lock()
			defer mu.Unlock()
			lists[r.URL.Path] = lists[r.URL.Path] || q.Get("resourceVersion") == "0"
		}
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	informers, err := NewInformers(&kube.Clients{REST: config, Kube: kubernetes.NewForConfigOrDie(config), NAD: nadclient.NewForConfigOrDie(config)}, "node1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, i := range []interface{ RunWithContext(context.Context) }{informers.nads, informers.namespaces, informers.peers, informers.node, informers.pods, informers.services} {
		go i.RunWithContext(ctx)
	}
	seen := func() string {
		mu.Lock()
		defer mu.Unlock()
		var paths []string
		for path, old := range lists {
			if old {
				t.Errorf("the list of %s may be of any age", path)
			}
			paths = append(paths, path)
		}
		return strings.Join(paths, " ")
	}
	const kinds = 5 // nodes are listed by two informers
	for len(strings.Fields(seen())) < kinds {
		select {
		case <-ctx.Done():
			t.Fatalf("lists of %s only", seen())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
