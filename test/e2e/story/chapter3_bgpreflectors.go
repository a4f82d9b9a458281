// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/bgp"
	"bulkhead/pkg/network"
	"bulkhead/test/lab"
)

// reflected has the managed fabric use route reflectors, the first two nodes, and full-mesh
// again. The last node then ends its sessions with the first one, as if that reflector were
// gone: the other one passes on the routes of both.
func (w *World) reflected(ctx context.Context, pods []*pod) (err error) {
	nodes := w.Lab.Nodes()
	reflectors, client := nodes[:2], nodes[len(nodes)-1]
	config, err := w.Lab.Client().CoreV1().ConfigMaps(productNamespace).Get(ctx, productConfig, metav1.GetOptions{})
	if err != nil {
		return err
	}
	original, other := config.Data, map[string]string{}
	for file, text := range original {
		if other[file] = strings.Replace(text, "topology = full-mesh", "topology = route-reflectors", 1); other[file] == text {
			return fmt.Errorf("file %s of ConfigMap %s has no topology of a managed fabric", file, productConfig)
		}
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, w.configureFabric(ctx, original, nil), each(reflectors, func(n *lab.Node) error { return w.labelReflector(ctx, n, nil) }))
		if err == nil {
			err = w.meshSessions(ctx)
		}
	}()
	label := ""
	if err := each(reflectors, func(n *lab.Node) error { return w.labelReflector(ctx, n, &label) }); err != nil {
		return err
	}
	done := "route reflectors"
	if err := w.configureFabric(ctx, other, &done); err != nil {
		return err
	}
	// A reflector names its clients, and a client has sessions with nobody else.
	var withClient []string
	for _, a := range addrs(client) {
		withClient = append(withClient, fmt.Sprintf("neighbor %s route-reflector-client", a))
	}
	if err := each(reflectors, func(n *lab.Node) error {
		return w.Lab.Wait(ctx, n.Name+" to reflect routes to "+client.Name, func(ctx context.Context) (bool, string, error) {
			res, err := n.Run(ctx, "vtysh -c 'show running-config'")
			for _, line := range withClient {
				if !strings.Contains(res.Stdout, line) {
					return false, "FRR does not have: " + line, err
				}
			}
			return true, "", err
		})
	}); err != nil {
		return err
	}
	first := addrs(reflectors[0])
	if err := w.sessionsWith(ctx, client, append(first, addrs(reflectors[1])...), 2*len(first)); err != nil {
		return err
	}
	if _, err := w.mesh(ctx, pods); err != nil {
		return err
	}
	if err := w.noDifferences(ctx, "sky", network.VRFDefault); err != nil {
		return err
	}
	shutdown := func(no string) string {
		text := "vtysh -c 'configure terminal' -c 'router bgp 64512'"
		for _, a := range first {
			text += fmt.Sprintf(" -c '%s neighbor %s shutdown'", no, a)
		}
		return text
	}
	if err := client.Script(ctx, shutdown("")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Script(context.WithoutCancel(ctx), shutdown("no"))) }()
	if err := w.sessionsWith(ctx, client, first, 0); err != nil {
		return err
	}
	if _, err := w.mesh(ctx, pods); err != nil {
		return fmt.Errorf("without the reflector %s: %w", reflectors[0].Name, err)
	}
	return nil
}

// labelReflector makes a node a route reflector or, with nil, leaves the choice to the product.
func (w *World) labelReflector(ctx context.Context, n *lab.Node, value *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{bgp.LabelReflector: value}}})
	if err != nil {
		return err
	}
	if _, err := w.Lab.Client().CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", n.Name, err)
	}
	return nil
}

// sessionsWith waits until a node has so many sessions with peers.
func (w *World) sessionsWith(ctx context.Context, n *lab.Node, peers []netip.Addr, want int) error {
	return w.Lab.Wait(ctx, fmt.Sprintf("%s to have %d sessions with %v", n.Name, want, peers), func(ctx context.Context) (bool, string, error) {
		up, text, err := established(ctx, n, peers)
		return up == want, text, err
	})
}

// meshSessions waits until every node has sessions with every other one.
func (w *World) meshSessions(ctx context.Context) error {
	return each(w.Lab.Nodes(), func(n *lab.Node) error {
		var others []netip.Addr
		for _, o := range w.Lab.Nodes() {
			if o != n {
				others = append(others, addrs(o)...)
			}
		}
		return w.sessionsWith(ctx, n, others, len(others))
	})
}

// configureFabric sets the product's configuration and replaces the cluster controllers, which
// alone read what it says of the managed fabric.
func (w *World) configureFabric(ctx context.Context, data map[string]string, done *string) error {
	if err := w.setConfig(ctx, data); err != nil {
		return err
	}
	if err := w.replaceClusterControllers(ctx, done); err != nil {
		return err
	}
	return w.Lab.Wait(ctx, "the cluster controllers to be replaced", w.deploymentsReplaced)
}
