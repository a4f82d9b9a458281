// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files are what ovn-trace 25.03 printed.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		file      string
		datapaths string
		notes     []string // one of them all, in any stage
		end       End
	}{
		{
			file: "outside.txt", datapaths: "t1_net_node1 R:t1_net_ovn_cluster_router R:GR_t1_net_node1 ext_t1_net_node1",
			notes: []string{"route ip4.dst == 0.0.0.0/0: to 172.18.255.254 by rtoe-GR_t1_net_node1", "source becomes 169.254.0.11"},
			end:   End{Port: "br-ex_t1_net_node1", PortType: "localnet"},
		},
		{
			file: "policy.txt", datapaths: "t1_net_node1 R:t1_net_ovn_cluster_router",
			end: End{Reason: `lr_in_policy, priority 1100: inport == "rtos-t1_net_node1" && ip4.dst == {10.244.0.0/16, 10.96.0.0/16, 100.64.0.0/16, 100.88.0.0/16, 169.254.0.0/17}`},
		},
		{file: "acl.txt", datapaths: "node1", end: End{Reason: "ls_out_acl_eval, priority 2000: reg0[10] == 1 && (outport == @bulkhead_locked)"}},
		{file: "portsecurity.txt", datapaths: "node1", end: End{Reason: "ls_in_apply_port_sec, priority 50: reg0[15] == 1"}},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", c.file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		var datapaths, notes []string
		for _, s := range got.Stages {
			name := s.Datapath
			if s.Router {
				name = "R:" + name
			}
			datapaths, notes = append(datapaths, name), append(notes, s.Notes...)
		}
		if d := strings.Join(datapaths, " "); d != c.datapaths {
			t.Errorf("%s: passes %s, want %s", c.file, d, c.datapaths)
		}
		for _, n := range c.notes {
			if !strings.Contains(strings.Join(notes, "\n"), n) {
				t.Errorf("%s: no note %q in %q", c.file, n, notes)
			}
		}
		if len(got.Ends) != 1 || got.Ends[0] != c.end {
			t.Errorf("%s: ends %+v, want %+v", c.file, got.Ends, c.end)
		}
	}
	if _, err := Parse("ovn-trace: no such datapath\n"); err == nil {
		t.Error("an output without a pipeline is accepted")
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"outside.txt", "policy.txt", "acl.txt", "portsecurity.txt"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if err == nil && len(got.Stages) == 0 {
			t.Error("neither a stage nor an error")
		}
	})
}

func TestParseBridges(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"bridge(\"br-int\")\n 0. in_port=1, priority 100, cookie 0x1\nDatapath actions: ct(zone=52,nat),recirc(0x1)\n\n" +
			"bridge(\"br-int\")\n 43. priority 0\nDatapath actions: eth-q\n", "sent by eth-q"},
		{"bridge(\"br-int\")\n 0. priority 1\nDatapath actions: ct(commit,zone=1,nat(src)),set(eth(src=1,dst=2)),tnl_push(tnl_port(genev_sys_6081),header(size=50,type=5),out_port(br-phy)),under\n", "sent by tunnel, under"},
		{"bridge(\"br-int\")\n25. ip,nw_dst=10.96.0.0/16, priority 1100\nDatapath actions: drop\n", "not sent; the last flow is 25. ip,nw_dst=10.96.0.0/16, priority 1100"},
		{"bridge(\"br-int\")\n33. ip,dl_dst=00:00:00:00:00:00, priority 100\nDatapath actions: userspace(pid=1)\n",
			"not sent: the next hop's MAC is unknown, so its neighbour is asked first; the last flow is 33. ip,dl_dst=00:00:00:00:00:00, priority 100"},
		{"bridge(\"br-int\")\n21. tcp, priority 120\nDatapath actions: hash(l4(0)),recirc(0xa)\n", "not followed to its end, after 21. tcp, priority 120: actions hash(l4(0)),recirc(0xa)"},
	} {
		if got := ParseBridges(c.text).String(); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func FuzzParseBridges(f *testing.F) {
	f.Add("bridge(\"br-int\")\n 0. in_port=1, priority 100\nDatapath actions: a,b(c,d),e\n")
	f.Fuzz(func(t *testing.T, text string) {
		if ParseBridges(text).String() == "" {
			t.Error("no end")
		}
	})
}

func TestParsePacket(t *testing.T) {
	for _, c := range []struct{ to, protocol, want string }{
		{"192.0.2.1", "", "192.0.2.1, icmp"}, {"2001:db8::1", "icmp", "2001:db8::1, icmp"},
		{"192.0.2.1:80", "", "192.0.2.1:80, tcp"}, {"[2001:db8::1]:53", "udp", "[2001:db8::1]:53, udp"}, {"192.0.2.1:1", "sctp", "192.0.2.1:1, sctp"},
		{"192.0.2.1", "tcp", ""}, {"192.0.2.1:0", "", ""}, {"web", "", ""}, {"192.0.2.1:80", "icmp", ""}, {"192.0.2.1:80", "gre", ""},
		{"::ffff:192.0.2.1", "", "192.0.2.1, icmp"}, {"[::ffff:192.0.2.1]:80", "", "192.0.2.1:80, tcp"}, {"fe80::1%eth0", "", ""}, {"[fe80::1%eth0 || ip4]:80", "", ""},
	} {
		p, err := ParsePacket(c.to, c.protocol)
		if (err != nil) != (c.want == "") || err == nil && p.String() != c.want {
			t.Errorf("%s %s: %v, %v, want %q", c.to, c.protocol, p, err, c.want)
		}
	}
}

func FuzzParsePacket(f *testing.F) {
	f.Add("192.0.2.1:80", "tcp")
	f.Fuzz(func(t *testing.T, to, protocol string) {
		if p, err := ParsePacket(to, protocol); err == nil && (!p.To.IsValid() || p.To.Zone() != "" || p.To.Is4In6()) {
			t.Errorf("sends to %s", p.To)
		}
	})
}

func TestFindPod(t *testing.T) {
	ports := []Port{
		{Name: "a_p", Network: "default", Pod: "a/p", Primary: true}, {Name: "red.a_p", Network: "red", Pod: "a/p", Primary: true}, {Name: "side.a_p", Network: "side", Pod: "a/p"},
		{Name: "a_q", Network: "default", Pod: "a/q", Primary: true}, {Name: "side.a_q", Network: "side", Pod: "a/q"}, {Name: "side.1.a_q", Network: "side", Pod: "a/q"},
		{Name: "a_r", Network: "default", Pod: "a/r"},
		{Name: "violet.a_s", Network: "violet", Pod: "a/s", Type: "remote", Primary: true},
	}
	for _, c := range []struct{ pod, network, want, failure string }{
		{pod: "a/p", want: "red.a_p"}, {pod: "a/p", network: "default", want: "a_p"}, {pod: "a/p", network: "side", want: "side.a_p"},
		{pod: "a/q", want: "a_q"}, {pod: "a/q", network: "side", failure: "several ports on network side: side.a_q, side.1.a_q"},
		{pod: "a/r", want: "a_r"},
		{pod: "a/s", failure: "run the trace there"}, {pod: "a/p", network: "blue", failure: "on network blue"},
	} {
		got, err := FindPod(ports, c.pod, c.network)
		if err == nil && got.Name != c.want || err != nil && (c.failure == "" || !strings.Contains(err.Error(), c.failure)) {
			t.Errorf("%s on %q: %s, %v, want %s%s", c.pod, c.network, got.Name, err, c.want, c.failure)
		}
	}
}

func TestNextMAC(t *testing.T) {
	addr := netip.MustParseAddr
	pod := Port{Name: "pier.a_p", Datapath: "pier", MAC: "0a:58:c0:00:02:14", Addrs: []netip.Addr{addr("192.0.2.20")}}
	other := Port{Name: "pier.a_q", Datapath: "pier", MAC: "0a:58:c0:00:02:15", Addrs: []netip.Addr{addr("192.0.2.21")}}
	localnet := Port{Name: "pier_localnet", Datapath: "pier", Type: "localnet"}
	toRouter := Port{Name: "stor", Datapath: "pier", Type: "patch", Peer: "rtos"}
	router := Port{Name: "rtos", Datapath: "router", Type: "patch", MAC: "0a:58:c0:00:02:01", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}
	for name, c := range map[string]struct {
		ports    []Port
		to, want string
		failure  string
	}{
		"a pod of the network":               {[]Port{pod, other, localnet}, "192.0.2.21", other.MAC, ""},
		"a host on a physical network":       {[]Port{pod, other, localnet}, "192.0.2.50", hostMAC, ""},
		"nobody":                             {[]Port{pod, other}, "192.0.2.50", "", "has no router"},
		"the router":                         {[]Port{pod, toRouter, router}, "192.0.2.1", router.MAC, ""},
		"beyond the router":                  {[]Port{pod, toRouter, router}, "198.51.100.1", router.MAC, ""},
		"nobody in the router's subnet":      {[]Port{pod, toRouter, router}, "192.0.2.50", "", "none of its ports has it"},
		"beyond a physical network's router": {[]Port{pod, localnet, toRouter, router}, "198.51.100.1", router.MAC, ""},
	} {
		got, err := nextMAC(pod, addr(c.to), c.ports)
		if got != c.want || (err == nil) != (c.failure == "") || err != nil && !strings.Contains(err.Error(), c.failure) {
			t.Errorf("%s: %q, %v, want %q %s", name, got, err, c.want, c.failure)
		}
	}
}
