// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"bulkhead/pkg/network"
	"bulkhead/pkg/process"
)

// Pods reads the pods of this node from a cache of the API.
type Pods interface {
	// Get returns the pod, if it is known.
	Get(namespace, name string) (*corev1.Pod, bool)
	// Changed returns a channel that receives a value when the pod changes.
	Changed(namespace, name string) (changed <-chan struct{}, stop func())
}

// Networks reads networks from the NAD index. The server calls it concurrently.
type Networks interface {
	// Primary is network.NADIndex.Primary, which also needs the namespace's label.
	Primary(namespace string) (*network.NAD, error)
	NAD(key string) (network.NAD, bool)
	// Foreign reports whether a NAD of another CNI plugin has the key.
	Foreign(key string) bool
}

// Ports manages pods' ports in Open vSwitch.
type Ports interface {
	// Ensure creates ports. They replace ports of an earlier pod with the same name, whose names it returns:
	// the caller deletes their links.
	Ensure(ctx context.Context, ports []Port) (replaced []string, err error)
	// Delete deletes a sandbox's ports of one attachment.
	Delete(ctx context.Context, sandbox, attachment string) error
	// DeleteNames deletes ports by name.
	DeleteNames(ctx context.Context, names []string) error
	List(ctx context.Context) ([]Port, error)
	// Mapped reports whether a physical network is mapped to a bridge.
	Mapped(ctx context.Context, physicalNetwork string) (bool, error)
	// WaitInstalled returns when the ports carry traffic.
	WaitInstalled(ctx context.Context, ports []Port) error
}

// StatusWriter writes the network-status annotation of a pod.
type StatusWriter interface {
	WriteStatus(ctx context.Context, namespace, pod, uid, status string) error
}

// Config configures the server.
type Config struct {
	Default      network.Network // the cluster default network
	Plan         network.Plan
	NetworksWait time.Duration // how long ADD waits for the pod and its networks
	PortsWait    time.Duration // how long ADD waits for OVN to connect the ports
	// ConfDir is where the container runtime reads CNI configurations. Without it, there
	// is no meta plugin.
	ConfDir string
	Log     *slog.Logger
}

// The timeouts stay below the runtime's own limit (kubelet waits four minutes
// for a sandbox).
const (
	DefaultNetworksWait = 45 * time.Second
	DefaultPortsWait    = 45 * time.Second
	// cleanUpTimeout bounds the clean-up after a failed ADD, whose own context
	// may be done.
	cleanUpTimeout = 15 * time.Second
)

// Server handles the calls of the CNI plugin.
type Server struct {
	conf     Config
	pods     Pods
	networks Networks
	ports    Ports
	links    Links
	status   StatusWriter

	mu        sync.Mutex
	notReady  string        // why the server is not ready; empty if it is
	changed   chan struct{} // closed and replaced when readiness or networks change
	sandboxes map[string]*sandboxLock
}

// sandboxLock serialises the calls for one sandbox.
type sandboxLock struct {
	token chan struct{}
	users int
}

// NewServer returns a server that is not ready yet.
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
		notReady: "the agent has not finished its first sync", changed: make(chan struct{}), sandboxes: map[string]*sandboxLock{}}
}

// SetReady marks the server as ready if reason is empty, and otherwise as not
// ready. STATUS returns the reason; ADD waits until the server is ready.
func (s *Server) SetReady(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.notReady != reason {
		s.notReady = reason
		s.notifyLocked()
	}
}

// NetworksChanged notifies waiting ADDs, which then read the networks again.
func (s *Server) NetworksChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notifyLocked()
}

func (s *Server) notifyLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// ready returns why the server is not ready, and a channel that is closed on the
// next change of readiness or networks.
func (s *Server) ready() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notReady, s.changed
}

// lockSandbox waits until no other call for the sandbox runs.
func (s *Server) lockSandbox(ctx context.Context, sandbox string) (unlock func(), err error) {
	s.mu.Lock()
	l := s.sandboxes[sandbox]
	if l == nil {
		l = &sandboxLock{token: make(chan struct{}, 1)}
		s.sandboxes[sandbox] = l
	}
	l.users++
	s.mu.Unlock()
	release := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(s.sandboxes, sandbox)
		}
	}
	select {
	case l.token <- struct{}{}:
		return func() { <-l.token; release() }, nil
	case <-ctx.Done():
		release()
		return nil, fmt.Errorf("wait for another CNI call for sandbox %s: %w", sandbox, ctx.Err())
	}
}

// Serve listens on the unix socket until ctx ends. Only root may use it.
func (s *Server) Serve(ctx context.Context, socket string) error {
	l, err := process.ListenUnix(socket)
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

// maxRequest bounds the size of a request. Configurations are small, but CHECK
// and DEL carry the previous result, and GC all attachments.
const maxRequest = 8 << 20

// ServeHTTP implements http.Handler. The body of a response is the plugin's
// output with status 200, and a CNI error with any other status.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxRequest))
	if err != nil {
		respond(w, nil, cnitypes.NewError(cnitypes.ErrIOFailure, "read the request: "+err.Error(), ""), "")
		return
	}
	out, version, err := s.Handle(req.Context(), body)
	respond(w, out, err, version)
}

func respond(w http.ResponseWriter, out []byte, err error, version string) {
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

// Error codes. The CNI specification reserves 100 and above for plugins.
const (
	codeFailed    = 100
	codeOverlap   = 101
	codeUnhealthy = 102
	// codeUnavailable is the specification's code for a STATUS that is not ready.
	codeUnavailable = 50
)

func cniError(err error) *cnitypes.Error {
	var e *cnitypes.Error
	var invalid requestError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &invalid):
		return cnitypes.NewError(uint(invalid), err.Error(), "")
	case errors.Is(err, ErrOverlap):
		return cnitypes.NewError(codeOverlap, err.Error(), "")
	case errors.Is(err, errTryLater):
		return cnitypes.NewError(cnitypes.ErrTryAgainLater, err.Error(), "")
	default:
		return cnitypes.NewError(codeFailed, err.Error(), "")
	}
}

// errTryLater: the condition may clear, so the runtime should retry.
var errTryLater = errors.New("try again later")

// Handle handles one call, given as Wire in JSON, and returns the plugin's output.
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
