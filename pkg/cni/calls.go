// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"bulkhead/pkg/network"
)

// add connects a pod. Doing it again gives the same and changes nothing; when
// it fails, what it made is undone.
func (s *Server) add(ctx context.Context, r Request) ([]byte, error) {
	release, err := s.take(ctx, r.Sandbox)
	if err != nil {
		return nil, err
	}
	defer release()
	pod, err := s.want(ctx, r)
	if err != nil {
		return nil, err
	}
	ns, err := s.links.Open(r.NetNS)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	have, err := ns.Read(ctx, r.names())
	if err != nil {
		return nil, err
	}
	if err := s.connect(ctx, pod, ns, have); err != nil {
		if len(have) > 0 {
			return nil, err // an ADD of a pod that was connected already: leave it as it is
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		return nil, errors.Join(err, wrap("clean up", s.remove(undo, r)))
	}
	return pod.Result(r.CNIVersion)
}

// connect makes links, then ports, and waits until the ports carry traffic;
// meanwhile the pod's status is written.
func (s *Server) connect(ctx context.Context, pod Pod, ns PodLinks, have State) error {
	if err := Apply(ctx, ns, Diff(pod.Links(), have)); err != nil {
		return err
	}
	ports := pod.Ports()
	if err := s.ports.Ensure(ctx, ports); err != nil {
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
	case <-time.After(statusGrace): // it goes on by itself
	}
	return nil
}

const (
	// statusGrace is how much longer than for its ports an ADD may take for
	// the status to be written.
	statusGrace = 500 * time.Millisecond
	statusWait  = 10 * time.Second
)

// writeStatus writes the network-status annotation beside what else ADD has to
// wait for. A meta plugin that attaches a secondary network writes its own.
func (s *Server) writeStatus(ctx context.Context, pod Pod) <-chan struct{} {
	done := make(chan struct{})
	r := pod.Request
	status, err := pod.NetworkStatus()
	if r.NAD != "" || s.status == nil || err != nil {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusWait)
		defer cancel()
		if err := s.status.WriteStatus(ctx, r.Namespace, r.Pod, pod.UID, status); err != nil {
			s.conf.Log.Warn("cannot write the pod's network status", "pod", r.Namespace+"/"+r.Pod, "error", err)
		}
	}()
	return done
}

// want waits until what the pod should have is known. When that takes too
// long the error says what is missing.
func (s *Server) want(ctx context.Context, r Request) (Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, s.conf.NetworksWait)
	defer cancel()
	changed, stop := s.pods.Changed(r.Namespace, r.Pod) // before looking, so that no change is missed
	defer stop()
	for {
		why, poked := s.ready()
		if why == "" {
			in, missing, err := s.inputs(r)
			if err != nil {
				return Pod{}, err
			}
			if missing == "" {
				return Build(r, in)
			}
			why = missing
		}
		select {
		case <-changed:
		case <-poked:
		case <-ctx.Done():
			return Pod{}, fmt.Errorf("pod %s/%s: %s (waited %s): %w", r.Namespace, r.Pod, why, s.conf.NetworksWait, errors.Join(errTryLater, ctx.Err()))
		}
	}
}

// inputs gathers what Build needs. missing says what is still to come; err,
// what waiting does not mend.
func (s *Server) inputs(r Request) (in Inputs, missing string, err error) {
	pod, ok := s.pods.Get(r.Namespace, r.Pod)
	if !ok {
		return in, "the API server has shown no such pod on this node", nil
	}
	if r.UID != "" && string(pod.UID) != r.UID {
		return in, fmt.Sprintf("the API server has pod uid %s under that name, not %s", pod.UID, r.UID), nil
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
		return in, fmt.Sprintf("annotation %s is missing: the controller of the node's zone gives it; see its log and the pod's events", network.AnnotationPodNetworks), nil
	}
	if in.Annotation, err = network.ParsePodNetworks(raw); err != nil {
		return in, err.Error(), nil // its writer may still mend it
	}
	needed := []string{network.DefaultName}
	if in.Primary != "" {
		needed = append(needed, in.Primary)
	}
	if r.NAD != "" {
		needed = []string{r.NAD}
	}
	for _, key := range needed {
		if _, ok := in.Annotation[key]; !ok {
			return in, fmt.Sprintf("annotation %s has no entry for %s yet", network.AnnotationPodNetworks, key), nil
		}
	}
	in.Networks = map[string]network.Network{}
	for key, entry := range in.Annotation {
		if key == network.DefaultName {
			in.Networks[key] = s.conf.Default
			continue
		}
		if entry.Role == network.RolePrimary && key != in.Primary {
			return in, fmt.Sprintf("annotation %s names %s as primary network, but namespace %s has %s", network.AnnotationPodNetworks, key, r.Namespace, orNone(in.Primary)), nil
		}
		nad, ok := s.networks.NAD(key)
		switch {
		case !ok:
			return in, fmt.Sprintf("NetworkAttachmentDefinition %s is unknown", key), nil
		case nad.Err != nil:
			return in, fmt.Sprintf("NetworkAttachmentDefinition %s: %v", key, nad.Err), nil
		}
		in.Networks[key] = nad.Network
	}
	return in, "", nil
}

func orNone(key string) string {
	if key == "" {
		return "none"
	}
	return key
}

// del undoes an ADD. It asks neither the API nor the pod's namespace, both of
// which may be gone.
func (s *Server) del(ctx context.Context, r Request) error {
	release, err := s.take(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	defer release()
	return s.remove(ctx, r)
}

// remove takes ports away before links, so that Open vSwitch never holds a
// port without its link.
func (s *Server) remove(ctx context.Context, r Request) error {
	errs := []error{s.ports.Delete(ctx, r.Sandbox, r.Attachment())}
	for _, name := range r.IfNames() {
		errs = append(errs, s.links.DeleteHost(HostName(r.Sandbox, name)))
	}
	return errors.Join(errs...)
}

// check compares a pod's interfaces with what they should be.
func (s *Server) check(ctx context.Context, r Request) error {
	release, err := s.take(ctx, r.Sandbox)
	if err != nil {
		return err
	}
	defer release()
	in, missing, err := s.inputs(r)
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
	have, err := ns.Read(ctx, r.names())
	if err != nil {
		return err
	}
	var wrong []error
	for _, op := range Diff(pod.Links(), have) {
		switch op.(type) {
		case DeleteAddress, DeleteRoute: // more than there should be is the pod's own business
		default:
			wrong = append(wrong, fmt.Errorf("would have to %s", op))
		}
	}
	wait, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	if err := errors.Join(append(wrong, s.ports.WaitInstalled(wait, pod.Ports()))...); err != nil {
		return cnitypes.NewError(codeUnhealthy, fmt.Sprintf("pod %s/%s is not as it should be", r.Namespace, r.Pod), err.Error())
	}
	return nil
}

// checkWait forgives a port that is being connected at this very moment.
const checkWait = 2 * time.Second

// gc removes what the runtime does not list, of that network configuration.
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
		errs = append(errs, wrap(fmt.Sprintf("collect port %s of pod %s/%s", p.Name, p.Namespace, p.Pod), s.discard(ctx, p)))
	}
	return errors.Join(errs...)
}

func (s *Server) discard(ctx context.Context, p Port) error {
	release, err := s.take(ctx, p.Sandbox)
	if err != nil {
		return err
	}
	defer release()
	return errors.Join(s.ports.DeleteNames(ctx, []string{p.Name}), s.links.DeleteHost(p.Name))
}

// Collect removes our ports whose link is gone: the pod's namespace went away
// while nobody called DEL. The link is the kernel's word; no file is trusted.
func (s *Server) Collect(ctx context.Context) error {
	ports, err := s.ports.List(ctx) // before the links: an ADD makes its link first
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
			s.conf.Log.Info("collecting the port of a pod that is gone", "port", p.Name, "pod", p.Namespace+"/"+p.Pod, "sandbox", p.Sandbox, "network", p.Network)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return wrap("remove ports of pods that are gone", s.ports.DeleteNames(ctx, stale))
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
