// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

func kubectlChecks() []Check {
	return []Check{
		{Chapter: 7, Title: "kubectl get shows every topology and role; kubectl explain documents every field", Phase: phaseObjects, Needs: needs(fixtureOthers), Run: kubectlReadable, Group: groupBadInput},
	}
}

// otherTopologies are networks of topologies and roles besides Layer3 Primary.
func (w *World) otherTopologies() string {
	return fmt.Sprintf(`
apiVersion: k8s.ovn.org/v1
kind: UserDefinedNetwork
metadata: {name: storage, namespace: inputs}
spec:
  topology: Layer2
  layer2: {role: Secondary, subnets: %s, ipam: {lifecycle: Persistent}}
---
apiVersion: k8s.ovn.org/v1
kind: ClusterUserDefinedNetwork
metadata: {name: floor}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: inputs}}
  network:
    topology: Localnet
    localnet: {role: Secondary, physicalNetworkName: tenantblue, subnets: %s, vlan: {mode: Access, access: {id: 200}}}
`, w.cidrs("10.82.0.0/16", "fd82::/64"), w.cidrs("192.168.100.0/24", "fd83::/64"))
}

func kubectlReadable(ctx context.Context, w *World) (string, error) {
	if err := w.conditions(ctx, udns, "inputs", "storage", "True"); err != nil {
		return "", err
	}
	if err := w.conditions(ctx, cudns, "", "floor", "True"); err != nil {
		return "", err
	}
	table, err := w.kubectl(ctx, "get", "udn,cudn", "-A")
	if err != nil {
		return "", err
	}
	fmt.Fprintf(w.Out, "     %s\n", strings.ReplaceAll(strings.TrimSpace(table), "\n", "\n     "))
	for name, words := range map[string][]string{
		"/net ": {"blue", "Layer3", "Primary", "True"}, "/storage ": {"inputs", "Layer2", "Secondary", "True"},
		"/red ": {"Layer3", "Primary", "True"}, "/floor ": {"Localnet", "Secondary", "True"},
	} {
		if err := lineHas(table, name, words); err != nil {
			return "", err
		}
	}
	for _, what := range []string{"udn", "cudn"} {
		text, err := w.kubectl(ctx, "explain", what+".spec", "--recursive")
		if err != nil {
			return "", err
		}
		if !strings.Contains(text, "joinSubnets") || !strings.Contains(text, "hostSubnet") {
			return "", fmt.Errorf("explain %s.spec names not every field: %s", what, text)
		}
	}
	for _, what := range []string{"udn.spec", "udn.spec.layer3", "udn.spec.layer3.subnets", "udn.spec.layer2", "udn.spec.layer2.ipam", "cudn.spec", "cudn.spec.network",
		"cudn.spec.network.localnet", "cudn.spec.network.localnet.vlan.access", "cudn.spec.network.noOverlayOptions", "ra.spec"} {
		text, err := w.kubectl(ctx, "explain", what)
		if err != nil {
			return "", err
		}
		if strings.Contains(text, "<no description>") || !strings.Contains(text, "FIELDS:") {
			return "", fmt.Errorf("explain %s: a field is not documented: %s", what, text)
		}
	}
	return "", nil
}

// lineHas returns an error unless the table's line with that name has all the words.
func lineHas(table, name string, words []string) error {
	for line := range strings.Lines(table) {
		if !strings.Contains(line, name) {
			continue
		}
		for _, word := range words {
			if !strings.Contains(line, word) {
				return fmt.Errorf("the line of %s has no %q: %s", strings.Trim(name, "/ "), word, line)
			}
		}
		return nil
	}
	return fmt.Errorf("kubectl get shows no %s", strings.Trim(name, "/ "))
}

// kubectl runs the cluster's own kubectl.
func (w *World) kubectl(ctx context.Context, args ...string) (string, error) {
	program, env := w.Lab.Kubectl()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = env
	var out []byte
	err := w.Lab.InNetwork(func() (err error) {
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
