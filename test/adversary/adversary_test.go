// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"bulkhead/test/adversary/attack"
)

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// Every attempt of every table can be sent as described, and each table has
// attempts at addresses of both IP families.
func TestTables(t *testing.T) {
	port := Interface{Name: "lo", MAC: "0a:58:0a:4d:00:02"}
	n := Network{Mark: 0x10001, Port: port, VRF: "vrf", Nodes: addrs("10.77.0.2", "fd77::2")}
	v := Victim{Name: "v", Addrs: addrs("10.77.0.3", "fd77::3"), MAC: "0a:58:0a:4d:00:03", Link: Interface{Name: "lo", MAC: "0a:58:0a:4d:00:04"}, NextMAC: "0a:58:0a:4d:00:03"}
	outside, own := addrs("192.0.2.1", "2001:db8::1"), addrs("10.77.0.4", "fd77::4")
	pod := Sender{Device: "lo", MAC: v.MAC, NextMAC: port.MAC, Addrs: own}
	raw4, raw6 := attack.Attempt{Socket: "hdrincl", Src: "10.77.0.4", To: "172.30.0.11"}, attack.Attempt{Socket: "hdrincl", Src: "fd77::4", To: "fd00::11"}
	quoted4 := attack.Quoted{From: netip.MustParseAddrPort("172.30.0.11:40000"), To: netip.MustParseAddrPort("192.0.2.1:53")}
	quoted6 := attack.Quoted{From: netip.MustParseAddrPort("[fd00::11]:40000"), To: netip.MustParseAddrPort("[2001:db8::1]:53")}
	g := attack.Geneve{VNI: 5, InnerSrc: "10.77.0.4", InnerDst: "10.77.0.3", SrcMAC: port.MAC, DstMAC: v.MAC}
	for name, table := range map[string][]attack.Attempt{
		"IntoNetwork": IntoNetwork(n, v),
		"ToService":   ToService(n, addrs("10.96.0.7", "fd96::7"), 0x80010000),
		"ByLoopback":  ByLoopback(n, v, outside),
		"Locked":      Locked(n, v, 0x2),
		"Tunnel":      Tunnel(addrs("172.30.0.11", "fd00::11"), addrs("172.30.0.12", "fd00::12"), []Interface{port}, v.MAC, g, 6081),
		"Loopback":    Loopback(addrs("127.0.0.1", "::1"), 80),
		"ForgedReplies": append(ForgedReplies(netip.MustParseAddr("169.254.0.11"), outside[0], 7998, 7997, netip.MustParseAddrPort("192.0.2.7:40000"), port),
			ForgedReplies(netip.MustParseAddr("fd69::b"), outside[1], 7998, 7997, netip.MustParseAddrPort("[2001:db8::7]:40000"), port)...),
		"FromPod":          FromPod("lo", port.MAC, own, v, false),
		"FromPod (locked)": FromPod("lo", port.MAC, own, v, true),
		"Sharing":          Sharing("lo", v.MAC, v.Addrs, Victim{Addrs: addrs("10.77.0.5", "fd77::5"), MAC: port.MAC}),
		"Sources":          Sources(pod, v.Addrs, outside, 7995),
		"Claims":           Claims(pod, n.Nodes, v),
		"RouterFrames":     RouterFrames(port, v),
		"DHCPAnswers":      DHCPAnswers(v),
		"Errors":           append(Errors(raw4, quoted4), Errors(raw6, quoted6)...),
		"FromOutside":      FromOutside("lo", port.MAC, v.MAC, outside, n.Nodes),
		"ThroughNode":      ThroughNode("lo", port.MAC, own, port, outside, 80),
	} {
		families := map[bool]int{}
		for i, a := range table {
			a.ID = i + 1
			if err := a.Validate(); err != nil {
				t.Errorf("%s: %+v: %v", name, a, err)
			}
			families[netip.MustParseAddr(a.To).Is4()]++
		}
		if families[true] == 0 && name != "RouterFrames" || families[false] == 0 {
			t.Errorf("%s: %d IPv4 and %d IPv6 attempts", name, families[true], families[false])
		}
	}
	if got := len(Listeners(n, n.Nodes, 80, "lo")); got < 40 {
		t.Errorf("Listeners: %d", got)
	}
}

// Abstract unix sockets: each way arrives at its listener.
func TestAbstract(t *testing.T) {
	name := fmt.Sprintf("@bulkhead-test-%d", os.Getpid())
	received := make(chan int, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var done, ready sync.WaitGroup
	for _, kind := range []string{"unix-stream", "unix-dgram"} {
		ready.Add(1)
		done.Go(func() {
			if err := (attack.Listener{Kind: kind, At: name + "-" + kind}).Listen(ctx, ready.Done, func(id int) { received <- id }); err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait()
	want := map[int]bool{}
	for i, a := range Abstract(name) {
		a.ID = i + 1
		want[a.ID] = true
		if err := errors.Join(a.Validate(), a.Do()); err != nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
	for len(want) > 0 {
		select {
		case id := <-received:
			delete(want, id)
		case <-time.After(10 * time.Second):
			t.Fatalf("not received: %v", want)
		}
	}
	cancel()
	done.Wait()
	if err := (attack.Attempt{ID: 1, Socket: "unix-dgram", To: "/path"}).Validate(); err == nil {
		t.Error("a path is a valid name")
	}
}

// Validate refuses attempts that would send nothing, or not what they describe.
func TestValidate(t *testing.T) {
	good := attack.Attempt{ID: 1, Socket: "udp", To: "192.0.2.1", Port: attack.Port, How: []string{"mark=1"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(a *attack.Attempt){
		"id 0":           func(a *attack.Attempt) { a.ID = 0 },
		"socket":         func(a *attack.Attempt) { a.Socket = "upd" },
		"address":        func(a *attack.Attempt) { a.To = "invalid IP" },
		"source address": func(a *attack.Attempt) { a.Src = "invalid IP" },
		"option":         func(a *attack.Attempt) { a.How = []string{"bindtodevise"} },
		"no quotation":   func(a *attack.Attempt) { a.Socket, a.Src, a.Frame = "hdrincl", "192.0.2.2", "too-long" },
		"VLAN":           func(a *attack.Attempt) { a.How = []string{"vlan=4096"} },
		"frame":          func(a *attack.Attempt) { a.Src, a.SrcMAC, a.Frame = "192.0.2.2", "0a:58:0a:4d:00:03", "upd" },
	} {
		a := good
		change(&a)
		if a.Validate() == nil {
			t.Errorf("%s: %+v is valid", name, a)
		}
	}
}
