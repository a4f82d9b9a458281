// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/adversary/way"
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

// throughGateway is the part in which a pod of the cluster default network, whose packets
// leave with the node's address, sends forged datagrams to the overlay's port of the other
// node: to its address, and to a service that its user writes.
func (a *arena) throughGateway(ctx context.Context, m *match) (part, error) {
	manifest := fmt.Sprintf(overlayService, overlayPort, beyondPort)
	for i, to := range a.encap[a.far.Name] {
		addressType := discoveryType(to)
		manifest += fmt.Sprintf(overlayEndpoints, i, addressType, to.String(), tunnelPort, listenedPort)
	}
	if err := a.w.Lab.Apply(ctx, manifest); err != nil {
		return part{}, err
	}
	s, err := a.w.Lab.Client().CoreV1().Services("grey").Get(ctx, "overlay", metav1.GetOptions{})
	if err != nil {
		return part{}, err
	}
	grey, far := player{pod: a.pods["grey-1"]}, player{machine: a.far}
	if err := m.listen(ctx, far, way.Listener{Kind: "udp", IPv6: true, At: fmt.Sprintf("[::]:%d", listenedPort)}); err != nil {
		return part{}, err
	}
	direct := slices.DeleteFunc(a.tunnelWays(), func(x way.Attempt) bool { return x.Socket != "geneve" })
	out := part{what: "to the overlay's port, from a pod through the node's gateway", attacks: trials([]player{grey}, direct), controls: trials([]player{a.admin()}, direct), victims: []string{"green-2"}}
	var led []*trial
	for _, x := range direct {
		i := slices.IndexFunc(s.Spec.ClusterIPs, func(ip string) bool { return sameFamily(ip, x.To) })
		if i < 0 {
			return part{}, fmt.Errorf("service grey/overlay has the addresses %v, none of %s's family", s.Spec.ClusterIPs, x.To)
		}
		x.To, x.Port = s.Spec.ClusterIPs[i], overlayPort
		switch {
		case slices.Contains(x.How, "mapped"):
			continue
		case len(x.How) == 0: // once for each address
			led = append(led, &trial{grey, way.Attempt{Socket: "udp", To: x.To, Port: beyondPort}})
			fragments := x
			fragments.Socket, fragments.How = "hdrincl", []string{"fragments"}
			for _, own := range a.victim("grey-1", false).Addrs {
				if sameFamily(own.String(), x.To) {
					fragments.Src = own.String()
				}
			}
			out.attacks = append(out.attacks, trial{grey, fragments})
		}
		out.attacks = append(out.attacks, trial{grey, x})
	}
	if len(led) == 0 {
		return part{}, errors.New("no way by the service grey/overlay")
	}
	// The service leads to the other node: on its other port, everything arrives.
	return out, a.w.Lab.Wait(ctx, "service grey/overlay to lead to "+a.far.Name, func(ctx context.Context) (bool, string, error) {
		if err := m.play(ctx, led); err != nil {
			return false, "", err
		}
		heard, err := m.heardSoFar(ctx, far.String())
		var missing []string
		for _, t := range led {
			if !heard[t.attempt.ID] {
				missing = append(missing, t.key())
			}
		}
		return len(missing) == 0, strings.Join(missing, ", "), err
	})
}

func discoveryType(a netip.Addr) corev1.IPFamily {
	if a.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func sameFamily(a, b string) bool { return strings.Contains(a, ":") == strings.Contains(b, ":") }
