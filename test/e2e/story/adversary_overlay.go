// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/adversary/attack"
)

// Ports of the service grey/overlay and, of the second, its endpoints' port.
const (
	overlayPort    = 5000 // leads to the overlay's port of the other node
	beyondPort     = 5001 // leads to listenedPort there
	listenedPort   = 7009
	overlayService = `
apiVersion: v1
kind: Service
metadata: {name: overlay, namespace: grey}
spec:
  ipFamilyPolicy: PreferDualStack
  ports: [{name: overlay, port: %d, protocol: UDP}, {name: beyond, port: %d, protocol: UDP}]
`
	overlayEndpoints = `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: overlay-%[1]d, namespace: grey, labels: {kubernetes.io/service-name: overlay}}
addressType: %[2]s
endpoints: [{addresses: [%[3]q]}]
ports: [{name: overlay, port: %[4]d, protocol: UDP}, {name: beyond, port: %[5]d, protocol: UDP}]
`
)

// throughGateway is the part in which a tenant's pod and one of the cluster default network,
// whose packets leave with the node's address, send forged datagrams to the overlay's port of
// the other node: to its address, and to a service that the latter's user writes.
func (a *attackSetup) throughGateway(ctx context.Context, m *round) (part, error) {
	manifest := fmt.Sprintf(overlayService, overlayPort, beyondPort)
	for i, to := range a.encap[a.far.Name] {
		manifest += fmt.Sprintf(overlayEndpoints, i, addressType(to), to.String(), tunnelPort, listenedPort)
	}
	if err := a.w.Lab.Apply(ctx, manifest); err != nil {
		return part{}, err
	}
	s, err := a.w.Lab.Client().CoreV1().Services("grey").Get(ctx, "overlay", metav1.GetOptions{})
	if err != nil {
		return part{}, err
	}
	grey, amber, far := actor{pod: a.pods["grey-1"]}, actor{pod: a.pods["amber-1"]}, actor{machine: a.far}
	if err := m.listen(ctx, far, attack.Listener{Kind: "udp", IPv6: true, At: fmt.Sprintf("[::]:%d", listenedPort)}); err != nil {
		return part{}, err
	}
	direct := slices.DeleteFunc(a.tunnelWays(), func(x attack.Attempt) bool { return x.Socket != "geneve" })
	out := part{what: "to the overlay's port, from a pod through the node's gateway", attacks: trials([]actor{grey, amber}, direct), controls: trials([]actor{a.admin()}, direct), victims: []string{"green-2"}}
	var arrives []*trial
	for d, x := range direct {
		i := slices.IndexFunc(s.Spec.ClusterIPs, func(ip string) bool { return sameFamily(ip, x.To) })
		if i < 0 {
			return part{}, fmt.Errorf("service grey/overlay has the addresses %v, none of %s's family", s.Spec.ClusterIPs, x.To)
		}
		x.To, x.Port = s.Spec.ClusterIPs[i], overlayPort
		switch {
		case slices.Contains(x.How, "mapped"):
			continue
		case len(x.How) == 0: // once for each address
			arrives = append(arrives, &trial{grey, attack.Attempt{Socket: "udp", To: x.To, Port: beyondPort}}, &trial{amber, attack.Attempt{Socket: "udp", To: direct[d].To, Port: listenedPort}})
			fragments := x
			fragments.Socket, fragments.How = "hdrincl", []string{"fragments"}
			for _, own := range a.victim("grey-1", false).Addrs {
				if sameFamily(own.String(), x.To) {
					fragments.Src = own.String()
				}
			}
			out.elsewhere = append(out.elsewhere, trial{grey, fragments})
			fragments.Port, fragments.Geneve = beyondPort, nil
			arrives = append(arrives, &trial{grey, fragments})
		}
		out.elsewhere = append(out.elsewhere, trial{grey, x})
	}
	if len(arrives) == 0 {
		return part{}, errors.New("no way by the service grey/overlay")
	}
	// The service leads to the other node, and so does the tenant's gateway: on another port,
	// everything arrives.
	return out, m.untilReceived(ctx, "service grey/overlay and amber's gateway to lead to "+a.far.Name, far, arrives)
}

// untilReceived repeats trials until the listener has received each of them.
func (m *round) untilReceived(ctx context.Context, what string, listener actor, trials []*trial) error {
	return m.w.Lab.Wait(ctx, what, func(ctx context.Context) (bool, string, error) {
		if err := m.try(ctx, trials); err != nil {
			return false, "", err
		}
		received, err := m.receivedSoFar(ctx, listener.String())
		var missing []*trial
		var keys []string
		for _, t := range trials {
			if !received[t.attempt.ID] {
				missing, keys = append(missing, t), append(keys, t.key()+": "+m.sendErrors[t.attempt.ID])
			}
		}
		trials = missing
		return len(missing) == 0, strings.Join(keys, ", "), err
	})
}

func addressType(a netip.Addr) discoveryv1.AddressType {
	if a.Is6() {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

func sameFamily(a, b string) bool { return strings.Contains(a, ":") == strings.Contains(b, ":") }
