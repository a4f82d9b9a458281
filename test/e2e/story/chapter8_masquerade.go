// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"bulkhead/test/lab"
)

func masqueradeChecks() []Check {
	return []Check{{Chapter: 8, Title: "another masquerade range, by configuration and a restart: every network follows, and back", Phase: phaseFaults,
		Needs: needs(fixtureServices, fixtureRedHost, fixtureLayer2Host), Run: masqueradeRangeChanged, Timeout: 40 * time.Minute, Group: groupMasquerade}}
}

// The default range begins with oldMasquerade; nothing of it is in otherMasquerade.
const otherMasquerade = "169.254.128.0/17,fd6a::/112"

var oldMasquerade = []*regexp.Regexp{regexp.MustCompile(`\b169\.254\.0\.`), regexp.MustCompile(`\bfd69::`)}

const (
	productNamespace        = "bulkhead-system"
	productConfig           = "bulkhead-config"
	annotationConfiguration = "bulkhead-story/configuration" // of the product's pods
)

// masqueradeRangeChanged moves the masquerade range under running pods and services,
// and back. Nothing may remain of the first range, nor, at the end, of the second.
func masqueradeRangeChanged(ctx context.Context, w *World) (figures string, err error) {
	before, err := w.steady(ctx, false)
	if err != nil {
		return "", err
	}
	config, err := w.Lab.Client().CoreV1().ConfigMaps(productNamespace).Get(ctx, productConfig, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	original, other := config.Data, map[string]string{}
	for file, text := range original {
		other[file] = strings.Replace(text, "[default]\n", "[default]\nmasquerade-subnets = "+otherMasquerade+"\n", 1)
		if other[file] == text {
			return "", fmt.Errorf("file %s of ConfigMap %s has no section [default]", file, productConfig)
		}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.configure(context.WithoutCancel(ctx), original, nil))
		}
	}()
	start := time.Now()
	configuration := "other masquerade range"
	if err := w.configure(ctx, other, &configuration); err != nil {
		return "", err
	}
	took := time.Since(start)
	if err := w.masqueradeWorks(ctx); err != nil {
		return "", fmt.Errorf("with the range %s: %w", otherMasquerade, err)
	}
	if err := each(w.Lab.Nodes(), func(n *lab.Node) error { return w.noAddressOf(ctx, n, oldMasquerade) }); err != nil {
		return "", err
	}
	if err := w.configure(ctx, original, nil); err != nil {
		return "", err
	}
	if err := w.masqueradeWorks(ctx); err != nil {
		return "", fmt.Errorf("with the first range again: %w", err)
	}
	return fmt.Sprintf("%d nodes replaced in %.0f s", len(w.Lab.Nodes()), took.Seconds()), w.asBefore(ctx, before, false)
}

// masqueradeWorks runs the checks of what a masquerade address is for.
func (w *World) masqueradeWorks(ctx context.Context) error {
	for what, run := range map[string]func(context.Context, *World) (string, error){
		"pods reach hosts":                      outsideReached,
		"node ports":                            nodePortsReached,
		"the API server":                        apiServerReached,
		"host-network pods reach services":      hostServicesReached,
		"kubelet's probes of red's pods":        func(ctx context.Context, w *World) (string, error) { return w.probesPass(ctx, "red") },
		"services with endpoints on their node": nodeEndpointsReached,
	} {
		if _, err := run(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// configure sets the product's configuration and replaces its pods, one node after the
// other, as an administrator would.
func (w *World) configure(ctx context.Context, data map[string]string, configuration *string) error {
	if err := w.setConfig(ctx, data); err != nil {
		return err
	}
	if err := w.replaceClusterControllers(ctx, configuration); err != nil {
		return err
	}
	apps := w.Lab.Client().AppsV1()
	patch, err := configurationPatch(configuration)
	if err != nil {
		return err
	}
	if _, err := apps.DaemonSets(productNamespace).Patch(ctx, "bulkhead-node", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("restart bulkhead-node: %w", err)
	}
	return w.Lab.Wait(ctx, "the product's pods to be replaced", func(ctx context.Context) (bool, string, error) {
		ds, err := apps.DaemonSets(productNamespace).Get(ctx, "bulkhead-node", metav1.GetOptions{})
		if err != nil {
			return false, "", err
		}
		if s := ds.Status; s.ObservedGeneration < ds.Generation || s.UpdatedNumberScheduled < s.DesiredNumberScheduled || s.NumberReady < s.DesiredNumberScheduled {
			return false, fmt.Sprintf("bulkhead-node: %d of %d updated, %d ready", s.UpdatedNumberScheduled, s.DesiredNumberScheduled, s.NumberReady), nil
		}
		return w.deploymentsReplaced(ctx)
	})
}

func (w *World) setConfig(ctx context.Context, data map[string]string) error {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	if _, err := w.Lab.Client().CoreV1().ConfigMaps(productNamespace).Patch(ctx, productConfig, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	return nil
}

// configurationPatch changes the template of pods, which replaces them.
func configurationPatch(configuration *string) ([]byte, error) {
	return json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotationConfiguration: configuration}}}}})
}

func (w *World) replaceClusterControllers(ctx context.Context, configuration *string) error {
	patch, err := configurationPatch(configuration)
	if err != nil {
		return err
	}
	for _, name := range []string{"bulkhead-cluster-a", "bulkhead-cluster-b"} {
		if _, err := w.Lab.Client().AppsV1().Deployments(productNamespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("restart %s: %w", name, err)
		}
	}
	return nil
}

// deploymentsReplaced reports whether the product's deployments have new pods only, which are ready.
func (w *World) deploymentsReplaced(ctx context.Context) (bool, string, error) {
	deployments, err := w.Lab.Client().AppsV1().Deployments(productNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, "", err
	}
	for _, d := range deployments.Items {
		if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas < *d.Spec.Replicas || s.ReadyReplicas < *d.Spec.Replicas {
			return false, fmt.Sprintf("%s: %d updated, %d ready", d.Name, s.UpdatedReplicas, s.ReadyReplicas), nil
		}
	}
	return true, "", nil
}

// noAddressOf waits until nothing on the node has an address that matches one of the
// patterns: kernel, nftables, flows of the external bridge and OVN's rows.
func (w *World) noAddressOf(ctx context.Context, n *lab.Node, patterns []*regexp.Regexp) error {
	const script = `
set -u
{ ip rule; ip -6 rule; } | sed 's/^/rule: /'
{ ip route show table all; ip -6 route show table all; } | sed 's/^/route: /'
{ ip -o addr; ip neigh; ip -6 neigh; } | sed 's/^/address: /'
nft -s list ruleset | sed 's/^/nft: /'
ovs-ofctl dump-flows --no-stats br-ex | sed 's/^/flow: /'
ovsdb-client dump unix:/var/run/ovn/ovnnb_db.sock OVN_Northbound | sed 's/^/row: /'`
	return w.Lab.Wait(ctx, "nothing of the other masquerade range to remain on "+n.Name, func(ctx context.Context) (bool, string, error) {
		res, err := n.Run(ctx, script)
		if err != nil {
			return false, "", err
		}
		if res.ExitCode != 0 || !strings.Contains(res.Stdout, "flow: ") || !strings.Contains(res.Stdout, "row: ") {
			return false, "", fmt.Errorf("read the state of %s: exit %d: %s", n.Name, res.ExitCode, res.Stderr)
		}
		var left []string
		for line := range strings.Lines(res.Stdout) {
			for _, p := range patterns {
				if p.MatchString(line) {
					left = append(left, strings.TrimSpace(line))
				}
			}
		}
		return len(left) == 0, strings.Join(left, "\n"), nil
	})
}
