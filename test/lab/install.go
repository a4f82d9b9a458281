// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"bulkhead/pkg/network"
	"bulkhead/test/lab/internal/host"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// installFiles hold the product's manifests, except its CRDs and admission policies.
var installFiles = []string{"deploy/config.yaml", "deploy/install.yaml"}

// install applies the product's manifests and waits until every node is Ready, which
// requires the product's CNI, and CoreDNS.
func (l *Lab) install(ctx context.Context, o Options, report func(string, ...any)) error {
	repo := o.Repo
	if err := applyDir(filepath.Join(repo, "deploy/crds"), func(m string) error { return l.applyCRD(ctx, m) }); err != nil {
		return err
	}
	if err := applyDir(filepath.Join(repo, "deploy/admission"), func(m string) error { return l.Apply(ctx, m) }); err != nil {
		return err
	}
	for _, file := range installFiles {
		if err := l.installFile(ctx, file, o); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	report("the product's manifests are applied")
	for _, n := range l.Nodes() {
		if err := l.Wait(ctx, n.Name+" to be Ready", func(ctx context.Context) (bool, string, error) {
			node, err := l.Client().CoreV1().Nodes().Get(ctx, n.Name, getOptions)
			if err != nil {
				return false, err.Error(), nil
			}
			ok, why := ready(node)
			return ok, why, nil
		}); err != nil {
			return err
		}
		report("%s is Ready", n.Name)
	}
	if o.BGP {
		if err := l.InstallFRR(ctx); err != nil {
			return fmt.Errorf("install FRR: %w", err)
		}
		report("FRR and frr-k8s run")
	}
	return l.installDNS(ctx, report)
}

// installFile applies one of installFiles, with what the lab's options change.
func (l *Lab) installFile(ctx context.Context, file string, o Options) error {
	manifest, err := os.ReadFile(filepath.Join(o.Repo, file))
	if err != nil {
		return err
	}
	objects, err := parseManifest(string(manifest))
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := adapt(object, l.state.Families, o); err != nil {
			return err
		}
	}
	return l.each(objects, "apply", apply(ctx))
}

// applyDir calls apply for each manifest of a directory, ordered by file name.
func applyDir(dir string, apply func(manifest string) error) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return fmt.Errorf("list the manifests in %s: %w", dir, err)
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no manifests", dir)
	}
	sort.Strings(files)
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read a manifest: %w", err)
		}
		if err := apply(string(data)); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

// applyCRD applies a CRD and waits until its API is served.
func (l *Lab) applyCRD(ctx context.Context, manifest string) error {
	objects, err := parseManifest(manifest)
	if err != nil {
		return err
	}
	if err := l.Apply(ctx, manifest); err != nil {
		return err
	}
	return l.each(objects, "wait for", func(r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		return l.Wait(ctx, "the API of "+o.GetName(), func(ctx context.Context) (bool, string, error) {
			now, err := r.Get(ctx, o.GetName(), getOptions)
			if err != nil {
				return false, err.Error(), nil
			}
			conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
			for _, c := range conditions {
				if m, ok := c.(map[string]any); ok && m["type"] == "Established" {
					return m["status"] == "True", fmt.Sprint(m["message"]), nil
				}
			}
			return false, "not established yet", nil
		})
	})
}

// adapt changes the product's manifests for the lab, as an operator does: it sets the lab's address ranges
// and options, and the API server's address.
func adapt(o *unstructured.Unstructured, f host.Families, options Options) error {
	if o.GetKind() == "ConfigMap" && o.GetName() == "bulkhead-config" {
		return adaptConfig(o, f, options)
	}
	return nil
}

// AllowedServices are the services of the cluster default network that pods of all networks
// reach in a lab: the defaults, and one per node for tests.
const AllowedServices = "default/kubernetes,kube-system/kube-dns,plain/node1,plain/node2,plain/node3,plain/node4"

// IngressNamespace is the namespace of the cluster default network whose pods reach all networks'
// services in a lab.
const IngressNamespace = "edge"

// adaptConfig sets the lab's address ranges, AllowedServices, IngressNamespace, the managed fabric, which does
// nothing before frr-k8s is installed, the transport and the section ovs in the product's configuration.
func adaptConfig(o *unstructured.Unstructured, f host.Families, options Options) error {
	sections := "\n[kubernetes]\napiserver = https://" + net.JoinHostPort(host.APIHost(f), strconv.Itoa(host.APIPort())) + "\n" +
		"\n[bgp-managed]\ntopology = full-mesh\n\n[ovs]\ngateway-mode = " + options.Gateway + "\n"
	if options.AgentUplink {
		sections += "uplink = eth0\n"
	}
	defaults := "\nudn-allowed-default-services = " + AllowedServices + "\ningress-namespaces = " + IngressNamespace
	if options.Transport == network.TransportNoOverlay {
		defaults += "\ntransport = " + network.TransportNoOverlay
		sections += "\n[no-overlay]\noutbound-snat = enabled\nrouting = managed\n"
	}
	subnets, services := strings.Join(host.ClusterSubnets(f), ","), strings.Join(host.ServiceCIDRs(f), ",")
	data, _, err := unstructured.NestedStringMap(o.Object, "data")
	if err != nil {
		return fmt.Errorf("read the data of ConfigMap %s: %w", o.GetName(), err)
	}
	found := false
	for name, text := range data {
		found = found || clusterSubnets.MatchString(text) && serviceCIDRs.MatchString(text)
		text = clusterSubnets.ReplaceAllString(text, "${1}"+subnets)
		data[name] = serviceCIDRs.ReplaceAllString(text, "${1}"+services+defaults) + sections
	}
	if !found {
		return fmt.Errorf("ConfigMap %s does not set cluster-subnets and service-cidrs, which the lab must replace", o.GetName())
	}
	return unstructured.SetNestedStringMap(o.Object, data, "data")
}

var (
	clusterSubnets = regexp.MustCompile(`(?m)^(\s*cluster-subnets\s*=\s*).*$`)
	serviceCIDRs   = regexp.MustCompile(`(?m)^(\s*service-cidrs\s*=\s*).*$`)
)

// unready returns an error that describes the pods that are not ready.
func (l *Lab) unready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	pods, err := l.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	var problems []error
	for _, p := range pods.Items {
		for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
			if why := describe(c); why != "" {
				problems = append(problems, fmt.Errorf("pod %s/%s on %s, container %s: %s", p.Namespace, p.Name, p.Spec.NodeName, c.Name, why))
			}
		}
		if p.Spec.NodeName == "" {
			problems = append(problems, fmt.Errorf("pod %s/%s is not scheduled", p.Namespace, p.Name))
		}
	}
	return errors.Join(problems...)
}

func describe(c corev1.ContainerStatus) string {
	why := ""
	switch s := c.State; {
	case s.Waiting != nil:
		why = s.Waiting.Reason + " " + s.Waiting.Message
	case s.Terminated != nil && s.Terminated.ExitCode != 0:
		why = fmt.Sprintf("exited with %d", s.Terminated.ExitCode)
	case s.Running != nil && !c.Ready:
		why = "running, not ready"
	}
	if last := c.LastTerminationState.Terminated; last != nil && why != "" {
		why += fmt.Sprintf("; the previous instance exited with %d %s", last.ExitCode, last.Message)
	}
	return strings.TrimSpace(why)
}
