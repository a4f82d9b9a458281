// SPDX-License-Identifier: Apache-2.0

// Package nad looks after NetworkAttachmentDefinitions that an administrator
// has written by hand: it checks them, gives their networks ids, and keeps
// them until no pod uses them. Those rendered from a UserDefinedNetwork or
// ClusterUserDefinedNetwork are package udn's.
package nad

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"bulkhead/pkg/network"
)

// Finalizer holds a NAD until no pod uses it, so that its id is not given to
// another network before.
const Finalizer = "k8s.ovn.org/network-attachment-definition-protection"

// Key names a NAD.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return network.NADKey(k.Namespace, k.Name) }

// holder is how the NAD appears in messages about whose a namespace is.
func (k Key) holder() string { return "NetworkAttachmentDefinition " + k.String() }

// NAD is what matters of the object.
type NAD struct {
	Key
	UID             types.UID
	ResourceVersion string
	Deleting        bool
	Config          string
	ID, Network     string // the annotations
	Finalizers      []string
}

// Inputs is everything that decides about one NAD.
type Inputs struct {
	NAD   *NAD // nil: it is gone
	Ours  bool // of our CNI type, and of no UserDefinedNetwork
	Conf  network.NetConf
	Error string   // why it cannot be used; "" is nothing
	ID    int      // its network's; 0: none was given
	Users []string // pods that use it; known only while it is deleted
}

// State is what we put on a NAD, and what we say about it.
type State struct {
	Key
	ID, Network string
	Finalizer   bool
	Problem     string // for the NAD's events; "" is nothing
}

// Op is one API write.
type Op struct {
	Kind OpKind
	NAD  NAD   // as it is
	Want State // as it should be
}

// OpKind is what an Op does.
type OpKind string

// The operations, in the order in which they are done.
const (
	Mark OpKind = "mark" // annotations and finalizer
	Warn OpKind = "warn about"
)

func (o Op) String() string {
	switch {
	case o.Kind == Warn:
		return fmt.Sprintf("warn about NetworkAttachmentDefinition %s: %s", o.NAD.Key, o.Want.Problem)
	case !o.Want.Finalizer:
		return fmt.Sprintf("release NetworkAttachmentDefinition %s", o.NAD.Key)
	case o.Want.ID == "":
		return fmt.Sprintf("take the network id off NetworkAttachmentDefinition %s", o.NAD.Key)
	}
	return fmt.Sprintf("give NetworkAttachmentDefinition %s network id %s", o.NAD.Key, o.Want.ID)
}

func idText(id int) string {
	if id == 0 {
		return ""
	}
	return strconv.Itoa(id)
}
