// SPDX-License-Identifier: Apache-2.0

package story

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/test/adversary/writes"
)

// greenService is what amber's Services attack: it exists before them.
const greenService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: green}
spec:
  ipFamilyPolicy: PreferDualStack
  externalIPs: [%s]
  selector: {role: server}
  ports: [{name: tcp, port: 80, targetPort: 8080}, {name: udp, port: 80, targetPort: 8080, protocol: UDP}]
`

// greenExternal are external IPs of green's service.
var greenExternal = []netip.Addr{netip.MustParseAddr("198.51.100.20"), netip.MustParseAddr("2001:db8:10::20")}

// stageService creates green's service and adds it to the scenario.
func (a *attackSetup) stageService(ctx context.Context, s *writes.Scenario) error {
	var quoted []string
	external := a.w.served(greenExternal)
	for _, ip := range external {
		quoted = append(quoted, strconv.Quote(ip.String()))
	}
	if err := a.w.Lab.Apply(ctx, fmt.Sprintf(greenService, strings.Join(quoted, ", "))); err != nil {
		return err
	}
	service, err := a.w.Lab.Client().CoreV1().Services(s.Victim).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.VictimService, s.VictimServiceUID = service.Name, string(service.UID)
	s.Taken = external
	for _, text := range service.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("service %s/%s: %w", s.Victim, service.Name, err)
		}
		s.Taken = append(s.Taken, ip)
	}
	for _, n := range a.w.Lab.Nodes() {
		s.Taken = append(s.Taken, addrs(n)...)
	}
	for _, name := range []string{"green-1", "grey-1"} {
		p := a.pods[name]
		s.Pods = append(s.Pods, p.Default...)
		if p.Tenant != "" {
			s.Pods = append(s.Pods, p.Primary...)
		}
	}
	return a.greenServed(ctx, s)
}

// greenServed checks that green's pods, and a host outside the cluster at its external addresses,
// are answered by green's service, and by nobody else.
func (a *attackSetup) greenServed(ctx context.Context, s *writes.Scenario) error {
	var servers []string
	for _, name := range []string{"green-1", "green-2", "green-3"} {
		servers = append(servers, "green/"+name)
	}
	cluster, err := a.w.clusterIPs(ctx, s.Victim, s.VictimService, writes.DivertedPort)
	if err != nil {
		return err
	}
	external := addrTargets("tcp", a.w.served(greenExternal), writes.DivertedPort)
	for _, name := range []string{"green-1", "green-2"} {
		if _, err := a.w.allAnswer(ctx, a.pods[name], slices.Concat(cluster, external), servers); err != nil {
			return fmt.Errorf("%s to green's service: %w", name, err)
		}
	}
	host := a.w.Lab.External()
	for _, ip := range a.w.served(greenExternal) {
		if err := a.w.externalRoute(ctx, ip, a.near); err != nil {
			return err
		}
		defer host.Run(context.WithoutCancel(ctx), "ip route del "+ip.String())
	}
	if _, err := answered(a.w.fromNode(ctx, host), external, servers, 1); err != nil {
		return fmt.Errorf("a host to green's service: %w", err)
	}
	return nil
}

// diverted checks that amber's services lead amber's pods to nobody but amber, that green's service
// is served as before, and that one of amber's services works: else the others prove nothing.
func (a *attackSetup) diverted(ctx context.Context, s writes.Scenario) error {
	list, err := a.w.Lab.Client().CoreV1().Services(s.Attacker).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var tried, working []string
	for _, service := range list.Items {
		targets, err := a.w.clusterIPs(ctx, s.Attacker, service.Name, writes.DivertedPort)
		if err != nil {
			return err
		}
		tried = append(tried, targets...)
		if service.Name == "diverted-external" {
			working = targets
		}
	}
	for _, ip := range s.Taken {
		at := netip.AddrPortFrom(ip, writes.DivertedPort).String()
		tried = append(tried, "tcp:"+at, "udp:"+at)
	}
	var errs []error
	from := a.pods[s.Pod]
	if _, err := a.w.allAnswer(ctx, from, working, []string{"amber/amber-1"}); err != nil {
		errs = append(errs, fmt.Errorf("amber's own service: %w", err))
	}
	got, err := a.w.check(ctx, from, "netprobe", probeTime, tried...)
	errs = append(errs, err, reachedAny(from.Name, slices.DeleteFunc(got, func(g probe) bool {
		return strings.HasPrefix(g.Who, "amber/") || isExternal(g.Target) && strings.HasPrefix(g.Who, "green/") // as any host outside
	})))
	return errors.Join(append(errs, a.greenServed(ctx, &s))...)
}

// isExternal reports whether a target is one of greenExternal.
func isExternal(target string) bool {
	return slices.ContainsFunc(greenExternal, func(ip netip.Addr) bool {
		return strings.HasSuffix(target, ":"+netip.AddrPortFrom(ip, writes.DivertedPort).String())
	})
}
