// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// FakeLinks implements Links in memory. It rejects what the kernel rejects.
type FakeLinks struct {
	mu         sync.Mutex
	hosts      map[string]bool             // links of the host
	namespaces map[string]map[string]*Link // namespace → interface
	// Fail, if set, is called before each operation and may return an error.
	Fail func(Op) error
}

// NewFakeLinks returns a host with the given network namespaces.
func NewFakeLinks(netns ...string) *FakeLinks {
	f := &FakeLinks{hosts: map[string]bool{"lo": true}, namespaces: map[string]map[string]*Link{}}
	for _, n := range netns {
		f.namespaces[n] = map[string]*Link{}
	}
	return f
}

// Open implements Links.
func (f *FakeLinks) Open(netns string) (PodLinks, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.namespaces[netns]; !ok {
		return nil, fmt.Errorf("open network namespace %s: no such file or directory", netns)
	}
	return &fakePod{f, netns}, nil
}

// DeleteNamespace deletes a network namespace, with both ends of its interfaces.
func (f *FakeLinks) DeleteNamespace(netns string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.namespaces[netns] {
		delete(f.hosts, l.Host)
	}
	delete(f.namespaces, netns)
}

// DeleteHost implements Links.
func (f *FakeLinks) DeleteHost(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleteHost(name)
	return nil
}

func (f *FakeLinks) deleteHost(name string) {
	delete(f.hosts, name)
	for _, links := range f.namespaces {
		maps.DeleteFunc(links, func(_ string, l *Link) bool { return l.Host == name })
	}
}

// HostNames implements Links.
func (f *FakeLinks) HostNames() (map[string]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.hosts), nil
}

type fakePod struct {
	f     *FakeLinks
	netns string
}

func (p *fakePod) Close() {}

func (p *fakePod) Read(_ context.Context, names map[string]string) (State, error) {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	out := State{}
	for name, host := range names {
		l := p.f.namespaces[p.netns][name]
		switch {
		case !p.f.hosts[host]:
		case l == nil || l.Host != host:
			out[name] = Link{Name: name, Host: host, Stale: true}
		default:
			c := *l
			c.Addresses, c.Routes = slices.Clone(l.Addresses), slices.Clone(l.Routes)
			out[name] = c
		}
	}
	return out, nil
}

func (p *fakePod) Do(_ context.Context, op Op) error {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	if p.f.Fail != nil {
		if err := p.f.Fail(op); err != nil {
			return err
		}
	}
	links := p.f.namespaces[p.netns]
	if links == nil {
		return errors.New("no such device")
	}
	link := func(name string) (*Link, error) {
		if links[name] == nil {
			return nil, fmt.Errorf("link %s not found", name)
		}
		return links[name], nil
	}
	switch o := op.(type) {
	case AddLink:
		if links[o.Link.Name] != nil || p.f.hosts[o.Link.Host] {
			return errors.New("file exists")
		}
		links[o.Link.Name] = &Link{Name: o.Link.Name, Host: o.Link.Host, MAC: o.Link.MAC, MTU: o.Link.MTU, Up: true}
		p.f.hosts[o.Link.Host] = true
	case DeleteLink:
		p.f.deleteHost(o.Host)
	case SetLink:
		l, err := link(o.Want.Name)
		if err != nil {
			return err
		}
		l.MAC, l.MTU, l.Up = o.Want.MAC, o.Want.MTU, o.Want.Up
	case AddAddress:
		l, err := link(o.Link)
		if err != nil {
			return err
		}
		l.Addresses = append(l.Addresses, o.Address)
		slices.SortFunc(l.Addresses, netip.Prefix.Compare)
	case DeleteAddress:
		l, err := link(o.Link)
		if err != nil {
			return err
		}
		l.Addresses = slices.DeleteFunc(l.Addresses, func(a netip.Prefix) bool { return a == o.Address })
	case AddRoute:
		l, err := link(o.Link)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(l.Addresses, func(a netip.Prefix) bool { return a.Contains(o.Route.Via) }) {
			return errors.New("network is unreachable")
		}
		l.Routes = append(l.Routes, o.Route)
		slices.SortFunc(l.Routes, compareRoutes)
	case DeleteRoute:
		l, err := link(o.Link)
		if err != nil {
			return err
		}
		l.Routes = slices.DeleteFunc(l.Routes, func(r Route) bool { return r == o.Route })
	default:
		return fmt.Errorf("unknown operation %T", op)
	}
	return nil
}
