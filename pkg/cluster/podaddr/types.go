// SPDX-License-Identifier: Apache-2.0

// Package podaddr allocates pod addresses on Layer2 and Localnet networks, whose
// subnets are not divided among nodes. It writes them to the pod-networks
// annotation, in which the zone of the pod's node writes entries too. With an
// IPAMClaim they outlive the pod.
package podaddr

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/kube"
	"bulkhead/pkg/network"
)

// Holder is the holder of addresses: one attachment of a pod, or an IPAMClaim
// for all pods that name it.
type Holder struct {
	Claim           bool
	Namespace, Name string
	UID             types.UID
	Key             string // of the attachment, if the holder is a pod
}

func (h Holder) String() string {
	if h.Claim {
		return "IPAMClaim " + network.NADKey(h.Namespace, h.Name)
	}
	return "pod " + network.NADKey(h.Namespace, h.Name)
}

// id identifies a holder: names can be reused.
func (h Holder) id() string { return string(h.UID) + " " + h.Key }

// Pod is the relevant state of a pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Started         bool // its interfaces exist and do not change any more
	Deleting        bool // it gets no new addresses
}

// Attachment is a pod's request for one Layer2 or Localnet network.
type Attachment struct {
	Key       string // in the pod-networks annotation
	NAD       string // key of the NetworkAttachmentDefinition
	Source    string // the annotation with the request, for messages
	Network   network.Network
	Request   kube.SelectionRequest
	Claim     *Claim // that Request names, nil if it does not exist
	Former    *Claim // a deleted claim that the pod's addresses belong to
	Alloc     *Allocator
	Requested func(netip.Addr) bool // reports whether a pod waits for this very address; may be nil
}

// Claim is an IPAMClaim.
type Claim struct {
	Holder       Holder
	Network      string         // name of its network
	IPs          []netip.Prefix // the addresses that it holds
	Reported     []string       // status.ips
	Refused      string         // why it cannot hold the addresses of its status
	TakenAddress string         // the address, if Refused because another holder has it
	Deleting     bool           // new pods cannot use it
	Owner        string         // the pod that uses it; during a live migration, the newest
}

// Allocation is a pod's allocation on one network, for the pod's lifetime.
type Allocation struct {
	Network  string
	Holder   Holder // of the addresses
	Entry    network.PodNetwork
	HasClaim bool
}

// State is the actual or desired state of one pod in the API.
type State struct {
	Pod     Pod
	Entries network.PodNetworks // written by this package
	Claims  map[string]Status   // by name
	// Labelled tells that the zones of other nodes need the pod: it is on a Layer 2
	// network, or shares addresses by a claim.
	Labelled bool
	// Problems explain missing entries. They are not part of the API.
	Problems []Problem
}

// Inputs are the inputs of Build.
type Inputs struct {
	Plan        network.Plan
	Pod         Pod
	Attachments []Attachment
	Held        map[string]Allocation // the pod's allocations, by key
	Previous    network.PodNetworks   // entries by a previous leader that are not restored yet
	Problems    []Problem             // found while reading the inputs
	Restoring   bool                  // restore previous entries, allocate nothing new
}

// Problem is why a pod lacks an entry.
type Problem struct {
	Key  string  // of the entry; "" if it concerns the whole pod
	Text string  // "" if the zone reports it, or if it resolves by itself
	Wait []topic // changes that may resolve it
}

// topic is a change that pods wait for.
type topic struct{ kind, name, value string }

func topicNAD(key string) topic                    { return topic{"nad", key, ""} }
func topicPrimary(namespace string) topic          { return topic{"primary", namespace, ""} }
func topicClaim(key string) topic                  { return topic{"claim", key, ""} }
func topicCapacity(networkName string) topic       { return topic{"capacity", networkName, ""} } // any address or tunnel id
func topicRelease(networkName, value string) topic { return topic{"release", networkName, value} }
