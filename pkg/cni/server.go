// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
)

// Pods are the pods of this node, as the API has them.
type Pods interface {
	// Get is the pod, if it is known.
	Get(namespace, name string) (*corev1.Pod, bool)
	// Changed gives a channel that gets a value when the pod changes next.
	Changed(namespace, name string) (changed <-chan struct{}, stop func())
}

// Networks is what the server asks of the catalog. It is called from many
// goroutines.
type Networks interface {
	// Primary is Catalog.Primary with the namespace's label looked up.
	Primary(namespace string) (*network.NAD, error)
	NAD(key string) (network.NAD, bool)
}

// Ports are pods' ports in Open vSwitch.
type Ports interface {
	// Ensure makes ports; those of a former sandbox of the same pod give way.
	Ensure(ctx context.Context, ports []Port) error
	// Delete removes a sandbox's ports of one attachment.
	Delete(ctx context.Context, sandbox, attachment string) error
	// DeleteNames removes ports by name.
	DeleteNames(ctx context.Context, names []string) error
	List(ctx context.Context) ([]Port, error)
	// WaitInstalled returns when the ports carry traffic.
	WaitInstalled(ctx context.Context, ports []Port) error
}

// StatusWriter writes the network-status annotation of a pod.
type StatusWriter interface {
	WriteStatus(ctx context.Context, namespace, pod, uid, status string) error
}

// Config is how the server behaves.
type Config struct {
	Default      network.Network // the cluster default network
	NetworksWait time.Duration   // how long ADD waits to be told the pod's networks
	PortsWait    time.Duration   // how long ADD waits for OVN to connect the ports
	Log          *slog.Logger
}

// Waits that leave room under the runtime's own limits (kubelet gives a
// sandbox four minutes).
const (
	DefaultNetworksWait = 45 * time.Second
	DefaultPortsWait    = 45 * time.Second
	// cleanUp bounds the undoing of an ADD that failed, whose own context may
	// have ended.
	cleanUp = 15 * time.Second
)

// Server answers the CNI plugin.
type Server struct {
	conf     Config
	pods     Pods
	networks Networks
	ports    Ports
	links    Links
	status   StatusWriter

	mu     sync.Mutex
	notYet string        // why the server is not ready; "" when it is
	poked  chan struct{} // closed and replaced when readiness or networks change
	busy   map[string]*turn
}

// turn serialises the calls about one sandbox.
type turn struct {
	token chan struct{}
	users int
}

// NewServer makes a server that is not ready yet.
func NewServer(conf Config, pods Pods, networks Networks, ports Ports, links Links, status StatusWriter) *Server {
	if conf.NetworksWait == 0 {
		conf.NetworksWait = DefaultNetworksWait
	}
	if conf.PortsWait == 0 {
		conf.PortsWait = DefaultPortsWait
	}
	if conf.Log == nil {
		conf.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{conf: conf, pods: pods, networks: networks, ports: ports, links: links, status: status,
		notYet: "the agent has not finished its first synchronisation", poked: make(chan struct{}), busy: map[string]*turn{}}
}

// SetReady tells that pods can be connected, or why they cannot: reason is
// what STATUS answers. ADD waits until the server is ready.
func (s *Server) SetReady(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notYet != reason {
		s.notYet = reason
		s.pokeLocked()
	}
}

// NetworksChanged makes waiting ADDs look at the networks again. It costs
// nothing when none waits.
func (s *Server) NetworksChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pokeLocked()
}

func (s *Server) pokeLocked() {
	close(s.poked)
	s.poked = make(chan struct{})
}

// ready gives why the server is not ready, and what tells of a change.
func (s *Server) ready() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notYet, s.poked
}

// take waits for the sandbox's turn.
func (s *Server) take(ctx context.Context, sandbox string) (release func(), err error) {
	s.mu.Lock()
	t := s.busy[sandbox]
	if t == nil {
		t = &turn{token: make(chan struct{}, 1)}
		s.busy[sandbox] = t
	}
	t.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(s.busy, sandbox)
		}
	}
	select {
	case t.token <- struct{}{}:
		return func() { <-t.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for another call about sandbox %s: %w", sandbox, ctx.Err())
	}
}

// Serve listens on the unix socket until ctx ends. Only root may use it.
func (s *Server) Serve(ctx context.Context, socket string) error {
	l, err := listen(socket)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	err = srv.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve CNI on %s: %w", socket, err)
}

func listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, fmt.Errorf("make the CNI socket's directory: %w", err)
	}
	// A socket left by a killed agent would refuse the bind.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the former CNI socket: %w", err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for CNI calls: %w", err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("restrict the CNI socket to root: %w", err)
	}
	return l, nil
}

// maxRequest bounds what is read of a request: configurations are small, but
// CHECK and DEL carry the previous result and GC every attachment.
const maxRequest = 8 << 20

// ServeHTTP implements http.Handler: what it answers with status 200 is the
// plugin's output, and with any other a CNI error.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxRequest))
	if err != nil {
		answer(w, nil, cnitypes.NewError(cnitypes.ErrIOFailure, "read the request: "+err.Error(), ""), "")
		return
	}
	out, version, err := s.Handle(req.Context(), body)
	answer(w, out, err, version)
}

func answer(w http.ResponseWriter, out []byte, err error, version string) {
	w.Header().Set("Content-Type", "application/json")
	if err == nil {
		_, _ = w.Write(out)
		return
	}
	e := cniError(err)
	b, jsonErr := json.Marshal(struct {
		CNIVersion string `json:"cniVersion,omitempty"`
		*cnitypes.Error
	}{version, e})
	if jsonErr != nil {
		b = []byte(`{"code":999,"msg":"cannot render the error"}`)
	}
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = w.Write(b)
}

// Codes of errors that the CNI specification leaves to plugins.
const (
	codeFailed    = 100
	codeOverlap   = 101
	codeUnhealthy = 102
	// codeUnavailable is the specification's answer to STATUS.
	codeUnavailable = 50
)

func cniError(err error) *cnitypes.Error {
	var e *cnitypes.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, ErrDecode):
		return cnitypes.NewError(cnitypes.ErrDecodingFailure, err.Error(), "")
	case errors.Is(err, ErrOverlap):
		return cnitypes.NewError(codeOverlap, err.Error(), "")
	case errors.Is(err, errTryLater):
		return cnitypes.NewError(cnitypes.ErrTryAgainLater, err.Error(), "")
	default:
		return cnitypes.NewError(codeFailed, err.Error(), "")
	}
}

// errTryLater marks what may pass by itself.
var errTryLater = errors.New("try again later")

// Handle does one call, given as Wire in JSON, and gives what the plugin
// prints.
func (s *Server) Handle(ctx context.Context, body []byte) (out []byte, version string, err error) {
	r, err := ParseRequest(body)
	if err != nil {
		return nil, r.CNIVersion, err
	}
	start := time.Now()
	switch r.Command {
	case "ADD":
		out, err = s.add(ctx, r)
	case "DEL":
		err = s.del(ctx, r)
	case "CHECK":
		err = s.check(ctx, r)
	case "GC":
		err = s.gc(ctx, r)
	case "STATUS":
		if reason, _ := s.ready(); reason != "" {
			err = cnitypes.NewError(codeUnavailable, reason, "")
		}
	case "VERSION":
		out, err = json.Marshal(map[string]any{"cniVersion": Versions[len(Versions)-1], "supportedVersions": Versions})
	}
	log := s.conf.Log.With("command", r.Command, "pod", r.Namespace+"/"+r.Pod, "sandbox", r.Sandbox, "interface", r.IfName, "took", time.Since(start).Round(time.Millisecond))
	if err != nil {
		log.Warn("CNI call failed", "error", err)
	} else if r.Command != "STATUS" && r.Command != "VERSION" {
		log.Info("CNI call done")
	}
	return out, r.CNIVersion, err
}
