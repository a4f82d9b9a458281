// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// agreeing is the NAD of the network n in a namespace; mtu makes descriptions
// differ, and 0 a NAD that cannot be used.
func agreeing(namespace string, mtu int) NAD {
	nad := NAD{Namespace: namespace, Name: "net", Network: Network{Name: "n"}}
	if mtu == 0 {
		nad.Err = errors.New("broken")
		return nad
	}
	nad.Network = Network{ID: 1, Name: "n", Topology: Layer3, Role: RolePrimary, MTU: mtu}
	return nad
}

// One NAD never speaks for the others of its network.
func TestCatalogNADsAgree(t *testing.T) {
	type step struct {
		namespace string
		mtu       int // -1: delete; settle: the namespace is ""
	}
	settle := step{}
	for _, tt := range []struct {
		what    string
		steps   []step
		mtu     int // 0: not described
		refused string
	}{
		{"one alone says what it likes", []step{{"a", 1400}, settle, {"a", 1300}}, 1300, ""},
		{"the altered one, though its key is lowest", []step{{"a", 1400}, {"b", 1400}, settle, {"a", 1300}}, 1400, "a"},
		{"most of them altered", []step{{"a", 1400}, {"b", 1400}, {"c", 1400}, settle, {"a", 1300}, {"b", 1300}}, 1400, "a b"},
		{"all of them, one by one", []step{{"a", 1400}, {"b", 1400}, settle, {"b", 1300}, {"a", 1300}}, 1300, ""},
		{"each another thing: the last agreed counts", []step{{"a", 1400}, {"b", 1400}, settle, {"a", 1300}, {"b", 1200}}, 0, "a b"},
		{"and one comes back", []step{{"a", 1400}, {"b", 1400}, settle, {"a", 1300}, {"b", 1200}, {"a", 1400}}, 1400, "b"},
		{"a new one that differs", []step{{"b", 1400}, settle, {"a", 1300}}, 1400, "a"},
		{"the only other one broken: it stands by what it said", []step{{"a", 1400}, {"b", 1400}, settle, {"b", 0}, {"a", 1300}}, 0, "a"},
		{"the other one gone", []step{{"a", 1400}, {"b", 1400}, settle, {"a", 1300}, {"b", -1}}, 1300, ""},
		{"at the start, the most", []step{{"a", 1300}, {"b", 1400}, {"c", 1400}, settle}, 1400, "a"},
		{"at the start, in another order", []step{{"c", 1400}, {"b", 1400}, {"a", 1300}, settle}, 1400, "a"},
		{"at the start as many: the lowest key", []step{{"b", 1300}, {"a", 1400}, settle}, 1400, "b"},
		{"at the start a broken one says nothing", []step{{"a", 0}, {"b", 1400}, settle}, 1400, ""},
		{"mended after the start", []step{{"a", 0}, {"b", 1400}, settle, {"a", 1300}}, 1400, "a"},
		{"all gone and made anew", []step{{"a", 1400}, {"b", 1400}, settle, {"a", -1}, {"b", -1}, {"a", 1300}, {"b", 1300}}, 1300, ""},
	} {
		c, there := NewNADIndex(), map[string]int{}
		for _, s := range tt.steps {
			switch {
			case s == settle:
				c.Settle()
			case s.mtu < 0:
				c.Delete(NADKey(s.namespace, "net"))
				delete(there, s.namespace)
			default:
				c.Set(agreeing(s.namespace, s.mtu))
				there[s.namespace] = s.mtu
			}
		}
		n, ok := c.Network("n")
		if ok != (tt.mtu != 0) || n.MTU != tt.mtu {
			t.Errorf("%s: %v, MTU %d; want %d", tt.what, ok, n.MTU, tt.mtu)
		}
		var refused, usable []string
		for _, ns := range slices.Sorted(maps.Keys(there)) {
			_, err := c.Primary(ns, true)
			if nad, _ := c.NAD(NADKey(ns, "net")); nad.Err == nil {
				usable = append(usable, ns)
			} else if there[ns] != 0 {
				refused = append(refused, ns)
				if want := fmt.Sprintf(`mtu is "%d", not`, there[ns]); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrNoPrimary) {
					t.Errorf("%s: namespace %s: %v, want %s", tt.what, ns, err, want)
				}
			}
		}
		if got := strings.Join(refused, " "); got != tt.refused {
			t.Errorf("%s: refused %q, want %q", tt.what, got, tt.refused)
		}
		if got := c.Namespaces("n"); !slices.Equal(got, usable) {
			t.Errorf("%s: namespaces %v, want %v", tt.what, got, usable)
		}
	}
}

// Everything that a Network says is compared, but for its name.
func TestDescribeKnowsEveryField(t *testing.T) {
	empty := Network{Name: "n"}
	for i := range reflect.TypeFor[Network]().NumField() {
		f := reflect.TypeFor[Network]().Field(i)
		n := empty
		v := reflect.ValueOf(&n).Elem().Field(i)
		switch v.Interface().(type) {
		case int:
			v.SetInt(7)
		case string, Topology, Role:
			v.SetString("x")
		case bool:
			v.SetBool(true)
		case []Subnet:
			v.Set(reflect.ValueOf([]Subnet{{CIDR: netip.MustParsePrefix("10.0.0.0/16"), HostLen: 24}}))
		case []netip.Prefix:
			v.Set(reflect.ValueOf([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}))
		case []netip.Addr:
			v.Set(reflect.ValueOf([]netip.Addr{netip.MustParseAddr("10.0.0.1")}))
		default:
			t.Fatalf("field %s has a type that this test does not know", f.Name)
		}
		if differs := describe(n) != describe(empty); differs != (f.Name != "Name") {
			t.Errorf("field %s: differs %v", f.Name, differs)
		}
		if f.Name != "Name" && difference(n, empty) == "" {
			t.Errorf("field %s: no words for the difference", f.Name)
		}
	}
}

// Whatever happens to a network's NADs, the catalog's counts are those of a
// count from scratch, and with all gone nothing is left.
func TestCatalogCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewNADIndex()
		namespaces := []string{"a", "b", "c"}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			ns := rapid.SampledFrom(namespaces).Draw(t, "namespace")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				c.Settle()
			case 1, 2:
				c.Delete(NADKey(ns, "net"))
			default:
				nad := agreeing(ns, rapid.SampledFrom([]int{0, 1300, 1400}).Draw(t, "mtu"))
				nad.Network.Name = rapid.SampledFrom([]string{"n", "m", ""}).Draw(t, "name")
				if nad.Network.Name == "" {
					nad.Err = errors.New("unreadable")
				}
				c.Set(nad)
			}
			for name, d := range c.byNetwork {
				by, usable := 0, 0
				for text, x := range d.all {
					if x.text != text || len(x.by) == 0 || x.usable > len(x.by) || x.usable < 0 {
						t.Fatalf("network %s: %q by %v, %d usable", name, text, x.by, x.usable)
					}
					by, usable = by+len(x.by), usable+x.usable
				}
				want := 0
				for key := range d.nads {
					if c.byKey[key].Network.Name != name {
						t.Fatalf("network %s: %s names %s", name, key, c.byKey[key].Network.Name)
					}
					if c.byKey[key].Err == nil {
						want++
					}
				}
				if usable != want || by != len(d.said) || len(d.nads) == 0 {
					t.Fatalf("network %s: %d usable, want %d; %d say something, %d in the index", name, usable, want, len(d.said), by)
				}
			}
		}
		for _, ns := range namespaces {
			c.Delete(NADKey(ns, "net"))
		}
		if len(c.byKey)+len(c.byNamespace)+len(c.byNetwork) > 0 {
			t.Fatalf("left behind: %v %v %v", c.byKey, c.byNamespace, c.byNetwork)
		}
	})
}
