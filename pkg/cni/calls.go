// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// add connects a pod. It is idempotent. If it fails, it deletes what it created.
func (s *Server) add(ctx context.Context, r Request) ([]byte, error) {
	unlock, err := s.lockSandbox(ctx, r.Sandbox)
	if err != nil {
		return nil, err
	}
	defer unlock()
	pod, err := s.waitForPod(ctx, r)
	if err != nil {
		return nil, err
	}
	ns, err := s.links.Open(r.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	have, err := ns.Read(ctx, pod.names())
	if err != nil {
		return nil, err
	}
	if err := s.connect(ctx, pod, ns, have); err != nil {
		if len(have) > 0 {
			return nil, err // a repeated ADD: the pod keeps the connection that it has
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
		defer cancel()
		return nil, errors.Join(err, wrap("clean up", s.remove(undo, r, slices.Collect(maps.Values(pod.names()))...)))
	}
	return pod.Result(r.CNIVersion)
}

// connect creates links, then ports, and waits until the ports carry traffic.
// It writes the pod's network status in the meantime.
func (s *Server) connect(ctx context.Context, pod Pod, ns PodLinks, have State) error {
	if err := Apply(ctx, ns, Diff(pod.Links(), have)); err != nil {
		return err
	}
	ports := pod.Ports()
	replaced, err := s.ports.Ensure(ctx, ports)
	for _, host := range replaced {
		err = errors.Join(err, wrap("disconnect the earlier pod of the same name", s.links.DeleteHost(host)))
	}
	if err != nil {
		return err
	}
	written := s.writeStatus(ctx, pod)
	wait, cancel := context.WithTimeout(ctx, s.conf.PortsWait)
	defer cancel()
	if err := s.ports.WaitInstalled(wait, ports); err != nil {
		return fmt.Errorf("pod %s/%s is not connected: %w", pod.Request.Namespace, pod.Request.Pod, err)
	}
	select {
	case <-written:
	case <-time.After(statusGrace): // the write continues in the background
	}
	return nil
}

const (
	// statusGrace is how long an ADD waits for the status write after its
	// ports carry traffic.
	statusGrace   = 500 * time.Millisecond
	statusTimeout = 10 * time.Second
	// statusRetries is how long a failed write is retried: the API server may be away, and nothing else writes the
	// annotation.
	statusRetries                     = 10 * time.Minute
	firstStatusRetry, lastStatusRetry = 200 * time.Millisecond, 10 * time.Second
)

// writeStatus writes the network-status annotation in the background, while ADD
// waits for the ports. A meta plugin, if there is one, writes it, with what it attaches
// itself.
func (s *Server) writeStatus(ctx context.Context, pod Pod) <-chan struct{} {
	done := make(chan struct{})
	r := pod.Request
	status, err := pod.NetworkStatus()
	if r.NAD != "" || pod.Delegated || s.status == nil || err != nil {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusRetries)
		defer cancel()
		for delay := firstStatusRetry; ; delay = min(2*delay, lastStatusRetry) {
			err := s.tryStatus(ctx, pod, status)
			if err == nil {
				return
			}
			s.conf.Log.Warn("cannot write the pod's network status", "pod", r.Namespace+"/"+r.Pod, "error", err)
			if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
				return // the pod is gone, or the API server refuses
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(delay):
			}
		}
	}()
	return done
}

func (s *Server) tryStatus(ctx context.Context, pod Pod, status string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return s.status.WriteStatus(ctx, pod.Request.Namespace, pod.Request.Pod, pod.UID, status)
}

// waitForPod waits for the pod's inputs and returns its desired state. On
// timeout the error says which input is missing.
func (s *Server) waitForPod(ctx context.Context, r Request) (Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, s.conf.NetworksWait)
	defer cancel()
	changed, stop := s.pods.Changed(r.Namespace, r.Pod) // before the first read, so that no change is missed
	defer stop()
	for {
		reason, notified := s.ready()
		if reason == "" {
			in, missing, err := s.inputs(ctx, r)
			if err != nil {
				return Pod{}, err
			}
			if missing == "" {
				return Build(r, in)
			}
			reason = missing
		}
		select {
		case <-changed:
		case <-notified:
		case <-ctx.Done():
			return Pod{}, fmt.Errorf("pod %s/%s: %s (waited %s): %w", r.Namespace, r.Pod, reason, s.conf.NetworksWait, errors.Join(errTryLater, ctx.Err()))
		}
	}
}

// inputs collects the inputs of Build. missing names an input that may still
// arrive; err is an error that waiting cannot resolve.
func (s *Server) inputs(ctx context.Context, r Request) (in Inputs, missing string, err error) {
	pod, ok := s.pods.Get(r.Namespace, r.Pod)
	if !ok {
		return in, "unknown pod: the API server has sent no such pod for this node", nil
	}
	if uid := kube.RuntimeUID(pod); r.UID != "" && uid != r.UID {
		return in, fmt.Sprintf("the API server has pod uid %s under that name, not %s", uid, r.UID), nil
	}
	in.UID = string(pod.UID)
	primary, err := s.networks.Primary(r.Namespace)
	if err != nil {
		return in, err.Error(), nil
	}
	if primary != nil {
		in.Primary = primary.Key()
	}
	raw, ok := pod.Annotations[network.AnnotationPodNetworks]
	if !ok {
		return in, fmt.Sprintf("annotation %s is missing: the controller of the node's zone writes it: see its log and the pod's events", network.AnnotationPodNetworks), nil
	}
	if in.Annotation, err = network.ParsePodNetworks(raw); err != nil {
		return in, err.Error(), nil // the controller may still correct it
	}
	if in.Secondary, missing, err = s.requested(pod); missing != "" || err != nil {
		return in, missing, err
	}
	if s.conf.ConfDir != "" {
		if in.Delegated, err = Delegated(s.conf.ConfDir); err != nil {
			return in, err.Error(), nil
		}
	}
	needed := []string{network.DefaultName}
	if in.Primary != "" {
		needed = append(needed, in.Primary)
	}
	for _, a := range in.Secondary {
		if !in.Delegated {
			needed = append(needed, a.Key)
		}
	}
	if r.NAD != "" {
		key, err := r.keyIn(in.Secondary)
		if err != nil {
			return in, "", err
		}
		needed = []string{key}
	}
	for _, key := range needed {
		if _, ok := in.Annotation[key]; !ok {
			return in, fmt.Sprintf("annotation %s has no entry for %s yet", network.AnnotationPodNetworks, key), nil
		}
	}
	// The zone and this agent watch namespaces each by itself. If one has not seen yet that a namespace was recreated with the
	// label, they disagree, and the pod would have a tenant's network beside an open interface on the default network, or none.
	if role := in.Annotation[network.DefaultName].Role; r.NAD == "" && (role == network.RoleInfrastructureLocked) != (in.Primary != "") {
		return in, fmt.Sprintf("annotation %s gives the pod the role %s on the cluster default network, but namespace %s has the primary network %s: "+
			"delete the pod if this does not end: it was created before its namespace had the label", network.AnnotationPodNetworks, role, r.Namespace, nameOrNone(in.Primary)), nil
	}
	in.Plan = s.conf.Plan
	in.Networks = map[string]network.Network{}
	for key, entry := range in.Annotation {
		if key == network.DefaultName {
			in.Networks[key] = s.conf.Default
			continue
		}
		if entry.Role == network.RolePrimary && key != in.Primary {
			return in, fmt.Sprintf("annotation %s names %s as primary network, but namespace %s has %s", network.AnnotationPodNetworks, key, r.Namespace, nameOrNone(in.Primary)), nil
		}
		nad, ok := s.networks.NAD(network.NADOf(key))
		switch {
		case !ok:
			return in, fmt.Sprintf("NetworkAttachmentDefinition %s is unknown", key), nil
		case nad.Err != nil:
			return in, fmt.Sprintf("NetworkAttachmentDefinition %s: %v", key, nad.Err), nil
		}
		in.Networks[key] = nad.Network
	}
	for _, key := range needed {
		if missing, err = s.unmapped(ctx, in.Networks[key]); missing != "" || err != nil {
			return in, missing, err
		}
	}
	return in, "", nil
}

// unmapped says that this node has no bridge for a Localnet network: the pod would run
// without a connection.
func (s *Server) unmapped(ctx context.Context, n network.Network) (missing string, err error) {
	if n.Topology != network.Localnet {
		return "", nil
	}
	mapped, err := s.ports.Mapped(ctx, n.PhysicalNetworkName)
	if err != nil || mapped {
		return "", err
	}
	return fmt.Sprintf("network %s: this node maps physical network %[2]s to no bridge: add %[2]s:BRIDGE to external_ids:ovn-bridge-mappings in the table Open_vSwitch",
		n.Name, n.PhysicalNetworkName), nil
}

// requested returns the interfaces on secondary networks that a pod requests. A meta
// plugin, if there is one, attaches other CNI plugins' networks.
func (s *Server) requested(pod *corev1.Pod) (out []Attachment, missing string, err error) {
	selections, err := kube.ParseSelections(pod.Namespace, pod.Annotations[network.AnnotationNetworks])
	if err != nil {
		return nil, "", err
	}
	for _, sel := range selections {
		key := network.NADKey(sel.Namespace, sel.Name)
		nad, ours := s.networks.NAD(key)
		switch {
		case !ours && s.networks.Foreign(key):
		case !ours:
			return nil, fmt.Sprintf("NetworkAttachmentDefinition %s, which annotation %s requests, does not exist", key, network.AnnotationNetworks), nil
		case sel.Err != nil:
			return nil, "", sel.Err
		case nad.Network.IsPrimary():
			return nil, "", fmt.Errorf("annotation %s requests the primary network %s, which pods have without a request: remove it", network.AnnotationNetworks, key)
		default:
			out = append(out, Attachment{Key: sel.Key, IfName: sel.IfName})
		}
	}
	return out, "", nil
}

func nameOrNone(key string) string {
	if key == "" {
		return "none"
	}
	return key
}

// del undoes an ADD. It reads neither the API nor the pod's network namespace:
// both may already be deleted.
func (s *Server) del(ctx context.Context, r Request) error {
	unlock, err := s.lockSandbox(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	return s.remove(ctx, r)
}

// remove deletes ports before links, so that Open vSwitch never has a port
// without its link. Interfaces that the pod requested have their ports' names; hosts
// are others to delete.
func (s *Server) remove(ctx context.Context, r Request, hosts ...string) error {
	ports, err := s.ports.List(ctx)
	for _, p := range ports {
		if p.Sandbox == r.Sandbox && p.Attachment == r.Attachment() {
			hosts = append(hosts, p.Name)
		}
	}
	for _, name := range r.IfNames() {
		hosts = append(hosts, HostName(r.Sandbox, name))
	}
	slices.Sort(hosts)
	errs := []error{err, s.ports.Delete(ctx, r.Sandbox, r.Attachment())}
	for _, host := range slices.Compact(hosts) {
		errs = append(errs, s.links.DeleteHost(host))
	}
	return errors.Join(errs...)
}

// check compares a pod's interfaces with their desired state.
func (s *Server) check(ctx context.Context, r Request) error {
	unlock, err := s.lockSandbox(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	in, missing, err := s.inputs(ctx, r)
	if missing != "" {
		err = errors.New(missing)
	}
	if err != nil {
		return err
	}
	pod, err := Build(r, in)
	if err != nil {
		return err
	}
	ns, err := s.links.Open(r.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	have, err := ns.Read(ctx, pod.names())
	if err != nil {
		return err
	}
	var differences []error
	for _, op := range Diff(pod.Links(), have) {
		switch op.(type) {
		case DeleteAddress, DeleteRoute: // the pod may add addresses and routes
		default:
			differences = append(differences, fmt.Errorf("ADD would %s", op))
		}
	}
	wait, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if err := errors.Join(append(differences, s.ports.WaitInstalled(wait, pod.Ports()))...); err != nil {
		return cnitypes.NewError(codeUnhealthy, fmt.Sprintf("pod %s/%s differs from its desired state", r.Namespace, r.Pod), err.Error())
	}
	return nil
}

// checkTimeout gives a port that is being connected time to become ready.
const checkTimeout = 2 * time.Second

// gc deletes the ports of the request's network configuration that the runtime
// does not list as valid attachments.
func (s *Server) gc(ctx context.Context, r Request) error {
	valid := map[string]bool{}
	for _, v := range r.Valid {
		valid[v.ContainerID+" "+r.Network+"/"+v.IfName] = true
	}
	ports, err := s.ports.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ports {
		own := len(p.Attachment) > len(r.Network) && p.Attachment[:len(r.Network)+1] == r.Network+"/"
		if !own || valid[p.Sandbox+" "+p.Attachment] {
			continue
		}
		errs = append(errs, wrap(fmt.Sprintf("delete stale port %s of pod %s/%s", p.Name, p.Namespace, p.Pod), s.deletePort(ctx, p)))
	}
	return errors.Join(errs...)
}

func (s *Server) deletePort(ctx context.Context, p Port) error {
	unlock, err := s.lockSandbox(ctx, p.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	return errors.Join(s.ports.DeleteNames(ctx, []string{p.Name}), s.links.DeleteHost(p.Name))
}

// Collect deletes ports whose link no longer exists: the kernel deleted it with
// the pod's network namespace, and the runtime never called DEL.
func (s *Server) Collect(ctx context.Context) error {
	ports, err := s.ports.List(ctx) // before the links: an ADD creates its link first
	if err != nil {
		return err
	}
	links, err := s.links.HostNames()
	if err != nil {
		return err
	}
	var stale []string
	for _, p := range ports {
		if !links[p.Name] {
			stale = append(stale, p.Name)
			s.conf.Log.Info("deleting a stale port: its link no longer exists", "port", p.Name, "pod", p.Namespace+"/"+p.Pod, "sandbox", p.Sandbox, "network", p.Network)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return wrap("delete stale ports", s.ports.DeleteNames(ctx, stale))
}

func wrap(action string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", action, err)
}
