// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"strings"
)

// skyHostPort is the port of the server in sky's host-network pod.
const skyHostPort = 7005

// hostWithoutOverlay has processes of a host-network pod of sky ask sky's pods, which are on all nodes, and
// these ask a server in it.
func (w *World) hostWithoutOverlay(ctx context.Context, pods []*pod) (err error) {
	host, manifest := hostNetworkPod("sky", "sky-host", pods[0].Node, "sky", serverContainer("sky-host", skyHostPort))
	if err := w.Lab.Apply(ctx, manifest); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, w.Lab.Client().CoreV1().Pods(host.Namespace).Delete(ctx, host.Name, podGrace()), w.podsGone(ctx, host.Namespace, "metadata.name="+host.Name))
	}()
	if err := w.ready(ctx, host); err != nil {
		return err
	}
	for _, container := range []string{"root", "nobody"} {
		want := map[string]string{}
		for _, p := range pods {
			for _, t := range targets(p.Primary...) {
				if container == "root" || !strings.HasPrefix(t, "icmp:") { // nobody may open no such socket
					want[t] = p.Namespace + "/" + p.Name
				}
			}
		}
		if _, err := w.reach(ctx, host, container, want); err != nil {
			return err
		}
	}
	server := map[string]string{}
	for _, proto := range []string{"tcp", "udp"} {
		for _, t := range addrTargets(proto, w.nodeAddrs("sky", host.Node), skyHostPort) {
			server[t] = host.Name
		}
	}
	for _, p := range pods {
		if _, err := w.reach(ctx, p, "", server); err != nil {
			return err
		}
	}
	return nil
}
