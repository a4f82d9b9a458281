// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"bulkhead/pkg/network"
	"bulkhead/test/adversary/writes"
)

// amberAuthor may do everything in the namespace amber.
const amberAuthor = `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: author, namespace: amber}
rules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: author, namespace: amber}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: author}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: amber-author}]
`

// author is a client that impersonates another user.
func (a *attackSetup) author(c rest.ImpersonationConfig) (client.Client, error) {
	config := a.w.Lab.RESTConfig()
	config.Impersonate = c
	return client.New(config, client.Options{})
}

// stage is what amber's author and the near node's token write about.
func (a *attackSetup) stage(ctx context.Context) (writes.Scenario, error) {
	s := writes.Scenario{Attacker: "amber", Victim: "green", Network: "net", Pod: "amber-1", VictimPod: "green-1",
		VictimEntry: a.annotations["green-1"]["green/net"], Node: a.near.Name, OtherNode: a.far.Name, OtherPod: [2]string{"green", "green-2"}}
	for ns, id := range map[string]*string{s.Attacker: &s.AttackerID, s.Victim: &s.VictimID} {
		nad, err := a.w.dynamic.Resource(nads).Namespace(ns).Get(ctx, s.Network, metav1.GetOptions{})
		if err != nil {
			return s, err
		}
		*id = nad.GetAnnotations()[network.AnnotationNetworkID]
	}
	victim, err := a.w.Lab.Client().CoreV1().Namespaces().Get(ctx, s.Victim, metav1.GetOptions{})
	if err != nil {
		return s, err
	}
	s.VictimUID = string(victim.UID)
	if len(s.VictimEntry.IPs) == 0 {
		return s, fmt.Errorf("green-1 has nothing on green/net: %v", a.annotations["green-1"])
	}
	return s, nil
}

// writes makes the table's API writes against running nodes. It compares NADs, pods
// and Nodes, the nodes' states, and which pods reach each other.
func (a *attackSetup) writes(ctx context.Context) (string, error) {
	if err := a.w.Lab.Apply(ctx, amberAuthor); err != nil {
		return "", err
	}
	s, err := a.stage(ctx)
	if err != nil {
		return "", err
	}
	admin, err := a.author(rest.ImpersonationConfig{})
	if err != nil {
		return "", err
	}
	tenant, err := a.author(rest.ImpersonationConfig{UserName: "amber-author"})
	if err != nil {
		return "", err
	}
	node, err := a.author(rest.ImpersonationConfig{UserName: "system:serviceaccount:bulkhead-system:bulkhead-node",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {s.Node}}})
	if err != nil {
		return "", err
	}
	kubelet, err := a.author(rest.ImpersonationConfig{UserName: "system:node:" + s.Node, Groups: []string{"system:nodes", "system:authenticated"}})
	if err != nil {
		return "", err
	}
	rows, err := a.w.states(ctx, false)
	if err != nil {
		return "", err
	}
	before, err := writes.Read(ctx, admin)
	if err != nil {
		return "", err
	}
	if err := a.stageService(ctx, &s); err != nil {
		return "", errors.Join(err, a.clear(ctx, admin, s))
	}
	const writesPods, writesServices = "a tenant that writes pods", "a tenant that writes Services"
	var errs []error
	total := writes.Result{}
	authors := []struct {
		what string
		who  client.Client
		all  []writes.Write
	}{
		{"a tenant that writes NADs", tenant, s.NADAuthor()}, {"a tenant that writes UserDefinedNetworks", tenant, s.UDNAuthor()},
		{writesPods, tenant, s.PodAuthor()}, {"a node's token", node, s.NodeToken()},
		{writesServices, tenant, s.ServiceAuthor()}, {"a kubelet", kubelet, append(s.Kubelet(), s.OtherNodes()...)},
	}
	ends := true
	if !a.w.Full {
		// test/api makes all of them against a real API server, without nodes.
		i := a.w.sample("writes to the API", len(authors)+1)
		ends = i == len(authors)
		first := min(i, len(authors)-1)
		authors = authors[first : first+1]
	}
	for _, p := range authors {
		r, err := writes.Run(ctx, p.who, admin, p.all)
		fmt.Fprintf(a.w.Out, "     %s: %d writes, %d refused\n", p.what, len(p.all), r.Refused)
		total.Refused, total.Accepted = total.Refused+r.Refused, total.Accepted+r.Accepted
		errs = append(errs, err, a.unmoved(ctx, admin, s, before, p.what))
		switch p.what {
		case writesServices:
			errs = append(errs, a.diverted(ctx, s))
		case writesPods:
			errs = append(errs, a.madeReachNobody(ctx, s))
		}
	}
	errs = append(errs, a.unreached(ctx, []string{"amber-1"}, "green-1", "green-2"))
	// Once more: a first comparison may come before the controllers' reaction to the last writes.
	errs = append(errs, a.unmoved(ctx, admin, s, before, "all of them"))
	errs = append(errs, a.clear(ctx, admin, s), a.w.asBefore(ctx, rows, false))
	if ends {
		errs = append(errs, a.ending(ctx, tenant, admin, s, before))
	}
	return fmt.Sprintf("%d writes, %d refused, nothing moved", total.Refused+total.Accepted, total.Refused), errors.Join(errs...)
}

// unmoved waits until all accepted writes are repaired.
func (a *attackSetup) unmoved(ctx context.Context, admin client.Client, s writes.Scenario, before writes.Facts, what string) error {
	mine := func(fact string) bool {
		return slices.ContainsFunc([]string{"Pod amber/made", "Pod amber/bound", "NetworkAttachmentDefinition amber/third"}, func(own string) bool {
			return strings.HasPrefix(fact, own)
		})
	}
	return a.w.Lab.Wait(ctx, "nothing to be moved by "+what, func(ctx context.Context) (bool, string, error) {
		now, err := writes.Read(ctx, admin)
		if err != nil {
			return false, "", err
		}
		d := slices.Concat(now.Differences(before, mine), now.SharedIDs(), now.TakenOver(s))
		return len(d) == 0, strings.Join(d, "\n"), nil
	})
}

// unreached checks that pods do not reach the others, which reach each other.
func (a *attackSetup) unreached(ctx context.Context, from []string, others ...string) error {
	var errs []error
	for _, to := range others {
		list := targets(a.pods[to].Primary...)
		for _, name := range from {
			got, err := a.w.check(ctx, a.pods[name], "netprobe", probeTime, list...)
			errs = append(errs, err)
			for _, g := range got {
				if g.OK {
					errs = append(errs, fmt.Errorf("%s reached %s of %s", name, g.Target, to))
				}
			}
		}
	}
	want := map[string]string{}
	for _, t := range targets(a.pods[others[1]].Primary...) {
		want[t] = a.pods[others[1]].Namespace + "/" + others[1]
	}
	_, err := reach(func(list []string) ([]probe, error) {
		return a.w.check(ctx, a.pods[others[0]], "netprobe", probeTime, list...)
	}, want)
	if err != nil {
		errs = append(errs, fmt.Errorf("%s and %s, which are of one network: %w", others[0], others[1], err))
	}
	return errors.Join(errs...)
}

// madeReachNobody pings the victim from all pods that the author has created and that run, whatever
// networks their annotations request. Each of them reaches a pod of its author's own network.
func (a *attackSetup) madeReachNobody(ctx context.Context, s writes.Scenario) error {
	var running []string
	if err := a.w.Lab.Wait(ctx, "pods that their author made to run", func(ctx context.Context) (bool, string, error) {
		pods, err := a.w.Lab.Client().CoreV1().Pods(s.Attacker).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, "", err
		}
		running = nil
		for _, p := range pods.Items {
			if strings.HasPrefix(p.Name, "made") && len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].State.Running != nil {
				running = append(running, p.Name)
			}
		}
		// made-2, whose annotations are none, and made-6, whose network-status is a lie.
		return slices.Contains(running, "made-2") && slices.Contains(running, "made-6"), strings.Join(running, ", "), nil
	}); err != nil {
		return err
	}
	answers := func(name string, to netip.Addr) (bool, error) {
		out, err := a.w.exec(ctx, &pod{Namespace: s.Attacker, Name: name}, "c", "/bin/sh", "-c", "ping -c 1 -W 2 "+to.String()+" >/dev/null 2>&1; echo exit $?")
		if err != nil {
			return false, fmt.Errorf("ping %s from pod %s: %w: %s", to, name, err, out)
		}
		return strings.TrimSpace(out) == "exit 0", nil
	}
	var errs []error
	for _, name := range running {
		for _, own := range a.pods["amber-1"].Primary {
			errs = append(errs, a.w.Lab.Wait(ctx, fmt.Sprintf("amber-1 to answer pod %s at %s", name, own), func(context.Context) (bool, string, error) {
				ok, err := answers(name, own)
				return ok, "no answer", err
			}))
		}
		for _, ip := range s.VictimEntry.IPs {
			ok, err := answers(name, ip.Addr())
			if ok {
				err = fmt.Errorf("pod %s, which its author made, reached %s of %s", name, ip.Addr(), s.VictimPod)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// clear deletes what the author has created.
func (a *attackSetup) clear(ctx context.Context, admin client.Client, s writes.Scenario) error {
	var errs []error
	bare := `{"metadata":{"finalizers":null}}`
	service := writes.Write{Verb: writes.Delete, Of: writes.Service, Namespace: s.Victim, Name: s.VictimService}
	if err := service.Do(ctx, admin, false); err != nil && !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	for _, all := range [][]writes.Write{s.PodAuthor(), s.UDNAuthor(), s.NADAuthor(), s.ServiceAuthor()} {
		for _, w := range all {
			if w.Verb != writes.Create || w.Of == writes.Binding || w.Namespace != s.Attacker {
				continue
			}
			steps := []writes.Write{{Verb: writes.Delete, Of: w.Of, Namespace: w.Namespace, Name: w.Name}}
			if w.Of == writes.UDN && w.Name == "second" { // with a finalizer of the author's own
				steps = append(steps, writes.Write{Verb: writes.Patch, Of: w.Of, Namespace: w.Namespace, Name: w.Name, Body: bare})
			}
			for _, step := range steps {
				if err := step.Do(ctx, admin, false); err != nil && !apierrors.IsNotFound(err) {
					errs = append(errs, err)
				}
			}
		}
	}
	return errors.Join(errs...)
}

// ending deletes amber's network under amber-1 and creates a new tenant, which must
// not get the network id that amber-1 still uses.
func (a *attackSetup) ending(ctx context.Context, tenant, admin client.Client, s writes.Scenario, before writes.Facts) error {
	if _, err := writes.Run(ctx, tenant, admin, s.Deletions()); err != nil {
		return err
	}
	// teal is a tenant that is created after amber's network was deleted under its pods.
	manifest := a.w.tenantManifest("teal", 32) + "---"
	for i, n := range []string{a.near.Name, a.far.Name} {
		p := &pod{Namespace: "teal", Name: fmt.Sprintf("teal-%d", i+1), Node: n, Tenant: "teal"}
		a.pods[p.Name] = p
		manifest += p.spec() + "---"
	}
	if err := a.w.Lab.Apply(ctx, strings.TrimSuffix(manifest, "---")); err != nil {
		return err
	}
	for _, name := range []string{"teal-1", "teal-2"} {
		if err := a.w.ready(ctx, a.pods[name]); err != nil {
			return err
		}
	}
	now, err := writes.Read(ctx, admin)
	if err != nil {
		return err
	}
	id := now["NetworkAttachmentDefinition teal/net id"]
	for fact, value := range before {
		if strings.HasPrefix(fact, "NetworkAttachmentDefinition ") && strings.HasSuffix(fact, " id") && value == id {
			err = errors.Join(err, fmt.Errorf("teal has the id %q, as %s", id, fact))
		}
	}
	if id == "" {
		err = errors.New("teal has no id")
	}
	return errors.Join(err, a.unreached(ctx, []string{"amber-1"}, "teal-1", "teal-2"))
}
