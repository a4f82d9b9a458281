// SPDX-License-Identifier: Apache-2.0

// Package podaddr gives pods their addresses on networks whose subnets are
// whole in every zone: Layer2 and Localnet. A pod gets them in its
// pod-networks annotation, beside the entries that the zone of its node
// writes; an IPAMClaim keeps them from one pod to the next.
package podaddr

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// Holder is who holds addresses: one attachment of a pod, or an IPAMClaim for
// all pods that name it.
type Holder struct {
	Claim           bool
	Namespace, Name string
	UID             types.UID
	Key             string // of the pod's attachment
}

func (h Holder) String() string {
	if h.Claim {
		return "IPAMClaim " + network.NADKey(h.Namespace, h.Name)
	}
	return "pod " + network.NADKey(h.Namespace, h.Name)
}

// id tells holders apart where names would not.
func (h Holder) id() string { return string(h.UID) + " " + h.Key }

// Pod is what of a pod matters here.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Started         bool // what it has in its network namespace does not change any more
	Leaving         bool // it gets nothing new
}

// Attachment is a pod's wish for one network, which is Layer2 or Localnet.
type Attachment struct {
	Key     string // in the annotation
	NAD     string // key of the NetworkAttachmentDefinition
	Source  string // the annotation that asks for it, for messages
	Network network.Network
	Request Request
	Claim   *Claim // that Request names; nil: there is none
	Former  *Claim // that the pod's addresses were of, if not of Claim
	Alloc   *Allocator
	Awaited func(netip.Addr) bool // tells addresses that pods wait for by name; nil: none
}

// Claim is an IPAMClaim.
type Claim struct {
	Holder  Holder
	Network string         // its network's name
	IPs     []netip.Prefix // what it holds
	Said    []string       // what its status says
	Refused string         // why it cannot hold that
	Wanted  string         // Refused: the address that another holds
	Leaving bool           // it gets no new pods
	Owner   string         // the pod that uses it: the last, while a virtual machine migrates
}

// Grant is what a pod holds on one network, for life.
type Grant struct {
	Network  string
	Holder   Holder // of the addresses
	Entry    network.PodNetwork
	HasClaim bool
}

// State is what the API says, or should say, about one pod.
type State struct {
	Pod     Pod
	Entries network.PodNetworks // ours alone
	Claims  map[string]Status   // by name
	// Problems are why something is missing; nothing in the API.
	Problems []Problem
}

// Inputs is what Build decides by.
type Inputs struct {
	Plan        network.Plan
	Pod         Pod
	Attachments []Attachment
	Held        map[string]Grant    // what the pod holds, by key
	Had         network.PodNetworks // what it had before this process was the leader and does not hold
	Problems    []Problem           // found on the way
	Restoring   bool                // nothing is given that it did not have
}

// Problem is why a pod has not got something.
type Problem struct {
	Key  string
	Text string  // "" where another says it, or waiting mends it
	Wait []topic // what may mend it
}

// topic is something that pods wait for.
type topic struct{ kind, name, what string }

func onNAD(key string) topic                   { return topic{"nad", key, ""} }
func onPrimary(namespace string) topic         { return topic{"primary", namespace, ""} }
func onClaim(key string) topic                 { return topic{"claim", key, ""} }
func onRoom(networkName string) topic          { return topic{"room", networkName, ""} } // any address
func onRelease(networkName, what string) topic { return topic{"release", networkName, what} }
