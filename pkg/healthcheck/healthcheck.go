// SPDX-License-Identifier: Apache-2.0

// Package healthcheck answers the health checks of external load balancers: on the port
// spec.healthCheckNodePort of each Service with external traffic policy Local, it says
// whether the node has endpoints. The zone controller tells it of services.
package healthcheck

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"bulkhead/pkg/process"
)

// Service is a Service with a health check port.
type Service struct {
	Key       string // namespace/name
	Port      uint16
	Endpoints int // of this node, ready
}

// Server listens on the ports of services.
type Server struct {
	log    *slog.Logger
	failed func(s Service, err error) // a port cannot be opened
	listen func(port uint16) (net.Listener, error)
	queue  process.Queue[uint16] // ports

	mu       sync.Mutex
	services map[owner]Service
	byPort   map[uint16]map[owner]struct{}
	open     map[uint16]*http.Server
}

// New makes a Server; Run runs it. failed is called each time that a port cannot be opened; it may be nil.
func New(log *slog.Logger, metrics *process.QueueMetrics, failed func(s Service, err error)) *Server {
	return &Server{log: log, failed: failed, listen: listenNode, queue: process.NewQueue[uint16]("health-check-ports", metrics),
		services: map[owner]Service{}, byPort: map[uint16]map[owner]struct{}{}, open: map[uint16]*http.Server{}}
}

// owner is a Service on a network. While its namespace moves to another network, it may be on both.
type owner struct{ network, key string }

// listenNode listens at all addresses of the node.
func listenNode(port uint16) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(int(port))))
}

// Replace replaces all services of a network, but those that keep selects by their keys: they stay as they are.
func (s *Server) Replace(network string, services []Service, keep func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := range s.services {
		if o.network == network && !keep(o.key) && !slices.ContainsFunc(services, func(n Service) bool { return n.Key == o.key }) {
			s.remove(o)
		}
	}
	for _, n := range services {
		if !keep(n.Key) {
			s.set(network, n)
		}
	}
}

// Set sets a service of a network.
func (s *Server) Set(network string, service Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(network, service)
}

// Lower takes endpoints from a service of a network, or its port: it adds none.
func (s *Server) Lower(network string, service Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := owner{network, service.Key}
	switch old, ok := s.services[o]; {
	case ok && old.Port != service.Port:
		s.remove(o)
	case ok && service.Endpoints < old.Endpoints:
		s.set(network, service)
	}
}

// Remove removes a service of a network, if it has it.
func (s *Server) Remove(network, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(owner{network, key})
}

func (s *Server) set(network string, n Service) {
	o := owner{network, n.Key}
	if s.services[o].Port != n.Port {
		s.remove(o)
	}
	if s.byPort[n.Port] == nil {
		s.byPort[n.Port] = map[owner]struct{}{}
		s.queue.Add(n.Port)
	}
	s.services[o], s.byPort[n.Port][o] = n, struct{}{}
}

func (s *Server) remove(o owner) {
	old, ok := s.services[o]
	if !ok {
		return
	}
	delete(s.services, o)
	if delete(s.byPort[old.Port], o); len(s.byPort[old.Port]) == 0 {
		delete(s.byPort, old.Port)
		s.queue.Add(old.Port)
	}
}

// at returns the service that has a port. The API gives a port to one Service; while another takes it over, both
// may be known.
func (s *Server) at(port uint16) (Service, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := slices.SortedFunc(maps.Keys(s.byPort[port]), func(a, b owner) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.network, b.network))
	})
	if len(owners) == 0 {
		return Service{}, false
	}
	return s.services[owners[0]], true
}

// Run opens and closes ports until ctx ends, and then closes all.
func (s *Server) Run(ctx context.Context) {
	s.queue.Run(ctx, 1, s.reconcile, func(port uint16, attempts int, err error) {
		s.log.Warn("health check port is not served, will retry", "port", port, "attempts", attempts, "error", err)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for port := range s.open {
		s.close(port)
	}
}

// reconcile opens or closes a port.
func (s *Server) reconcile(_ context.Context, port uint16) error {
	service, wanted := s.at(port)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch _, isOpen := s.open[port]; {
	case wanted && !isOpen:
		l, err := s.listen(port)
		if err != nil {
			if s.failed != nil {
				s.failed(service, err)
			}
			return fmt.Errorf("listen for the health checks of service %s: %w", service.Key, err)
		}
		s.open[port] = s.serve(l, port)
		s.log.Info("health check port is open", "service", service.Key, "port", port)
	case !wanted && isOpen:
		s.close(port)
		s.log.Info("health check port is closed", "port", port)
	}
	return nil
}

func (s *Server) close(port uint16) {
	_ = s.open[port].Close()
	delete(s.open, port)
}

// Anybody who reaches the node can connect: connections are few and short, so that they do not use up
// the process's files. A pod has its network's or its node's address here, or its own: one that holds many
// connections does not delay a load balancer's checks.
const (
	maxConnections = 128
	maxOfSource    = 4
	timeout        = 5 * time.Second
	headerTimeout  = time.Second
	maxHeader      = 4 << 10
)

func (s *Server) serve(l net.Listener, port uint16) *http.Server {
	return serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.answer(w, port) }), s.log)
}

func serve(l net.Listener, h http.Handler, log *slog.Logger) *http.Server {
	server := &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, ReadTimeout: timeout, WriteTimeout: timeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	server.SetKeepAlivesEnabled(false)
	go func() { _ = server.Serve(process.LimitSources(l, maxOfSource, maxConnections)) }() // ends with Close
	return server
}

// status is the body of an answer. kube-proxy's has the Service's namespace and name too, which other
// tenants that reach the node should not learn.
type status struct {
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// answer answers as kube-proxy does: 200 if the node has endpoints, else 503, and the number of endpoints as
// a weight.
func (s *Server) answer(w http.ResponseWriter, port uint16) {
	service, _ := s.at(port)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(service.Endpoints))
	if service.Endpoints == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(status{service.Endpoints, true})
}
