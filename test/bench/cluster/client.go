// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
)

// caller sends requests that are bytes already and reads no more of the
// answers than it must: what is measured is not to be the one who asks.
type caller struct {
	http *http.Client
	host string
}

func newCaller(c *rest.Config) (*caller, error) {
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("make an HTTP client: %w", err)
	}
	return &caller{h, c.Host}, nil
}

const (
	jsonType  = "application/json"
	mergeType = "application/merge-patch+json"
	applyType = "application/apply-patch+yaml"
)

func (c *caller) send(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	req.Header.Set("Accept", jsonType)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return resp, nil
}

// do sends a request of whose answer only the success matters.
func (c *caller) do(ctx context.Context, method, path, contentType string, body []byte) error {
	resp, err := c.send(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // else the connection is lost
		return fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	return nil
}

// callers is how many requests a caller has under way.
const callers = 8

// each does n requests, several at a time.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for k := range callers {
		g.Go(func() error {
			for i := k; i < n; i += callers {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// object is what of an object anybody here looks at.
type object struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Annotations     map[string]string `json:"annotations"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
	} `json:"status"`
}

// allTrue tells whether the object has n conditions of status True.
func (o *object) allTrue(n int) bool {
	for _, c := range o.Status.Conditions {
		if c.Status == "True" {
			n--
		}
	}
	return n == 0
}

type list struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Items []object `json:"items"`
}

func (c *caller) list(ctx context.Context, path string) (list, error) {
	var l list
	resp, err := c.send(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return l, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&l); err != nil {
		return l, fmt.Errorf("read the list %s: %w", path, err)
	}
	return l, nil
}

// version is the state of a resource from which a watch can start.
func (c *caller) version(ctx context.Context, path string) (string, error) {
	l, err := c.list(ctx, path+"?limit=1")
	return l.Metadata.ResourceVersion, err
}

// watch shows see every event after version that has the text with in it,
// until see says that it is done. The rest is not even parsed: most events are
// of no interest, and the time of whoever waits is not what is measured.
func (c *caller) watch(ctx context.Context, path, version, with string, see func(o *object) (done bool)) error {
	for {
		last, err := c.watchOnce(ctx, path, version, with, see)
		if err != io.EOF { //nolint:errorlint // as it was read
			return err
		}
		// The server ends the watch of a client that does not keep up.
		if last != "" {
			version = last
		}
	}
}

// watchOnce is watch until the server ends it with io.EOF, and then says from
// which version to go on.
func (c *caller) watchOnce(ctx context.Context, path, version, with string, see func(o *object) (done bool)) (last string, err error) {
	resp, err := c.send(ctx, http.MethodGet, path+"?watch=1&resourceVersion="+version, "", nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var e struct {
		Object object `json:"object"`
	}
	var line []byte
	for r := bufio.NewReaderSize(resp.Body, 64<<10); ; {
		next, err := r.ReadBytes('\n')
		if err == io.EOF { //nolint:errorlint // as it was read
			if line == nil {
				return "", err
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return "", fmt.Errorf("watch %s: %w", path, err)
			}
			return e.Object.Metadata.ResourceVersion, io.EOF
		}
		if err != nil {
			return "", fmt.Errorf("watch %s: %w", path, err)
		}
		line = next
		if bytes.HasPrefix(line, []byte(`{"type":"ERROR"`)) {
			return "", fmt.Errorf("watch %s: the server ended it: %s", path, line)
		}
		if !bytes.Contains(line, []byte(with)) {
			continue
		}
		e.Object = object{}
		if err := json.Unmarshal(line, &e); err != nil {
			return "", fmt.Errorf("watch %s: %w", path, err)
		}
		if see(&e.Object) {
			return "", nil
		}
	}
}
