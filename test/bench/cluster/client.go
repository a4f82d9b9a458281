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

// rawClient sends prepared request bodies and decodes as little of the responses
// as it can, so that the client does not dominate the measurement.
type rawClient struct {
	http *http.Client
	host string
}

func newRawClient(c *rest.Config) (*rawClient, error) {
	h, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("create an HTTP client: %w", err)
	}
	return &rawClient{h, c.Host}, nil
}

const (
	jsonType  = "application/json"
	mergeType = "application/merge-patch+json"
	applyType = "application/apply-patch+yaml"
)

func (c *rawClient) send(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.host+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create a request: %w", err)
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

// do sends a request and discards the response's body.
func (c *rawClient) do(ctx context.Context, method, path, contentType string, body []byte) error {
	resp, err := c.send(ctx, method, path, contentType, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil { // read to the end to reuse the connection
		return fmt.Errorf("%s %s: read the response: %w", method, path, err)
	}
	return nil
}

// parallelism is the number of concurrent requests.
const parallelism = 8

// each calls f for 0 to n-1, several at a time.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for k := range parallelism {
		g.Go(func() error {
			for i := k; i < n; i += parallelism {
				if err := f(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// object is the part of an API object that this program decodes.
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

// allTrue reports whether the object has n conditions of status True.
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

func (c *rawClient) list(ctx context.Context, path string) (list, error) {
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

// version returns the resource version from which a watch can start.
func (c *rawClient) version(ctx context.Context, path string) (string, error) {
	l, err := c.list(ctx, path+"?limit=1")
	return l.Metadata.ResourceVersion, err
}

// watch calls handle with every event after version that contains substring,
// until handle returns true. It does not parse other events, to keep the client
// cheap.
func (c *rawClient) watch(ctx context.Context, path, version, substring string, handle func(o *object) (done bool)) error {
	for {
		last, err := c.watchOnce(ctx, path, version, substring, handle)
		if err != io.EOF { //nolint:errorlint // watchOnce returns it unwrapped
			return err
		}
		// The server closes the watch of a client that does not keep up.
		if last != "" {
			version = last
		}
	}
}

// watchOnce watches until handle returns true or the server closes the watch: it
// then returns io.EOF and the resource version to resume from.
func (c *rawClient) watchOnce(ctx context.Context, path, version, substring string, handle func(o *object) (done bool)) (last string, err error) {
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
		if err == io.EOF { //nolint:errorlint // ReadBytes returns it unwrapped
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
			return "", fmt.Errorf("watch %s: the server closed it: %s", path, line)
		}
		if !bytes.Contains(line, []byte(substring)) {
			continue
		}
		e.Object = object{}
		if err := json.Unmarshal(line, &e); err != nil {
			return "", fmt.Errorf("watch %s: %w", path, err)
		}
		if handle(&e.Object) {
			return "", nil
		}
	}
}
