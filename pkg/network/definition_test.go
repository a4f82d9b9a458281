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

// testNAD returns the NAD of network n in a namespace. NADs with another mtu
// have another definition; with mtu 0 the NAD is unusable.
func testNAD(namespace string, mtu int) NAD {
	nad := NAD{Namespace: namespace, Name: "net", Network: Network{Name: "n"}}
	if mtu == 0 {
		nad.Err = errors.New("broken")
		return nad
	}
	nad.Network = Network{ID: 1, Name: "n", Topology: Layer3, Role: RolePrimary, MTU: mtu}
	return nad
}

// A network's definition changes only when all of its NADs agree.
func TestNADIndexAgreement(t *testing.T) {
	type step struct {
		namespace string
		mtu       int // -1: delete the NAD
	}
	synced := step{}
	for _, tt := range []struct {
		name    string
		steps   []step
		mtu     int // 0: no usable definition
		refused string
	}{
		{"a single NAD changes", []step{{"a", 1400}, synced, {"a", 1300}}, 1300, ""},
		{"the NAD with the lowest key changes", []step{{"a", 1400}, {"b", 1400}, synced, {"a", 1300}}, 1400, "a"},
		{"most NADs change", []step{{"a", 1400}, {"b", 1400}, {"c", 1400}, synced, {"a", 1300}, {"b", 1300}}, 1400, "a b"},
		{"all NADs change, one by one", []step{{"a", 1400}, {"b", 1400}, synced, {"b", 1300}, {"a", 1300}}, 1300, ""},
		{"all NADs change, differently: the last agreement stays", []step{{"a", 1400}, {"b", 1400}, synced, {"a", 1300}, {"b", 1200}}, 0, "a b"},
		{"one of them changes back", []step{{"a", 1400}, {"b", 1400}, synced, {"a", 1300}, {"b", 1200}, {"a", 1400}}, 1400, "b"},
		{"a new NAD differs", []step{{"b", 1400}, synced, {"a", 1300}}, 1400, "a"},
		{"the only other NAD becomes unusable and keeps its definition", []step{{"a", 1400}, {"b", 1400}, synced, {"b", 0}, {"a", 1300}}, 0, "a"},
		{"the other NAD is deleted", []step{{"a", 1400}, {"b", 1400}, synced, {"a", 1300}, {"b", -1}}, 1300, ""},
		{"initial list: the most frequent definition", []step{{"a", 1300}, {"b", 1400}, {"c", 1400}, synced}, 1400, "a"},
		{"initial list, in another order", []step{{"c", 1400}, {"b", 1400}, {"a", 1300}, synced}, 1400, "a"},
		{"initial list, equally frequent: the lowest key", []step{{"b", 1300}, {"a", 1400}, synced}, 1400, "b"},
		{"initial list: an unusable NAD does not count", []step{{"a", 0}, {"b", 1400}, synced}, 1400, ""},
		{"an unusable NAD becomes usable after the initial list", []step{{"a", 0}, {"b", 1400}, synced, {"a", 1300}}, 1400, "a"},
		{"all NADs are recreated", []step{{"a", 1400}, {"b", 1400}, synced, {"a", -1}, {"b", -1}, {"a", 1300}, {"b", 1300}}, 1300, ""},
	} {
		c, mtus := NewNADIndex(), map[string]int{}
		for _, s := range tt.steps {
			switch {
			case s == synced:
				c.MarkSynced()
			case s.mtu < 0:
				c.Delete(NADKey(s.namespace, "net"))
				delete(mtus, s.namespace)
			default:
				c.Set(testNAD(s.namespace, s.mtu))
				mtus[s.namespace] = s.mtu
			}
		}
		n, ok := c.Network("n")
		if ok != (tt.mtu != 0) || n.MTU != tt.mtu {
			t.Errorf("%s: %v, MTU %d; want %d", tt.name, ok, n.MTU, tt.mtu)
		}
		var refused, usable []string
		for _, ns := range slices.Sorted(maps.Keys(mtus)) {
			_, err := c.Primary(ns, true)
			if nad, _ := c.NAD(NADKey(ns, "net")); nad.Err == nil {
				usable = append(usable, ns)
			} else if mtus[ns] != 0 {
				refused = append(refused, ns)
				if want := fmt.Sprintf(`mtu is "%d", not`, mtus[ns]); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrNoPrimary) {
					t.Errorf("%s: namespace %s: %v, want %s", tt.name, ns, err, want)
				}
			}
		}
		if got := strings.Join(refused, " "); got != tt.refused {
			t.Errorf("%s: refused %q, want %q", tt.name, got, tt.refused)
		}
		if got := c.Namespaces("n"); !slices.Equal(got, usable) {
			t.Errorf("%s: namespaces %v, want %v", tt.name, got, usable)
		}
	}
}

// settingsText and difference cover every field of Network except Name.
func TestSettingsCoverEveryField(t *testing.T) {
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
			t.Fatalf("field %s has a type that this test does not handle", f.Name)
		}
		if differs := settingsText(n) != settingsText(empty); differs != (f.Name != "Name") {
			t.Errorf("field %s: differs %v", f.Name, differs)
		}
		if f.Name != "Name" && difference(n, empty) == "" {
			t.Errorf("field %s: difference is empty", f.Name)
		}
	}
}

// After any sequence of changes the index's counters equal a fresh count, and
// when all NADs are deleted the index is empty.
func TestNADIndexCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewNADIndex()
		namespaces := []string{"a", "b", "c"}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			ns := rapid.SampledFrom(namespaces).Draw(t, "namespace")
			switch rapid.IntRange(0, 9).Draw(t, "action") {
			case 0:
				c.MarkSynced()
			case 1, 2:
				c.Delete(NADKey(ns, "net"))
			default:
				nad := testNAD(ns, rapid.SampledFrom([]int{0, 1300, 1400}).Draw(t, "mtu"))
				nad.Network.Name = rapid.SampledFrom([]string{"n", "m", ""}).Draw(t, "name")
				if nad.Network.Name == "" {
					nad.Err = errors.New("malformed")
				}
				c.Set(nad)
			}
			for name, d := range c.byNetwork {
				nads, usable := 0, 0
				for text, x := range d.byText {
					if x.text != text || len(x.nads) == 0 || x.usable > len(x.nads) || x.usable < 0 {
						t.Fatalf("network %s: %q has NADs %v, %d usable", name, text, x.nads, x.usable)
					}
					nads, usable = nads+len(x.nads), usable+x.usable
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
				if usable != want || nads != len(d.latest) || len(d.nads) == 0 {
					t.Fatalf("network %s: %d usable, want %d; %d NADs with a definition, counted %d", name, usable, want, len(d.latest), nads)
				}
			}
		}
		for _, ns := range namespaces {
			c.Delete(NADKey(ns, "net"))
		}
		if len(c.byKey)+len(c.byNamespace)+len(c.byNetwork) > 0 {
			t.Fatalf("not empty: %v %v %v", c.byKey, c.byNamespace, c.byNetwork)
		}
	})
}
