// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"cmp"
	"fmt"
	"slices"

	"bulkhead/pkg/loader"
	"bulkhead/pkg/network"
)

// Kind is the kind of an operation.
type Kind int

const (
	PutRow Kind = iota
	DeleteRow
	SetConfig
	AttachRoot
	AttachPod
	DetachPod
	AttachDoor
	DetachDoor
)

// Op is one operation. String describes it in one line.
type Op struct {
	Kind   Kind
	Row    loader.Row // PutRow, DeleteRow, AttachPod, AttachDoor
	PodUID string     // AttachPod, DetachPod
	Path   string     // AttachPod
	Door   int        // DetachDoor
	Config loader.Config
	phase  int
}

// ifindex is the interface of an operation on a door; 0: it is on something else.
func (o Op) ifindex() int {
	if row, ok := o.Row.(loader.DoorRow); ok {
		return row.Ifindex
	}
	return o.Door
}

func (o Op) String() string {
	switch o.Kind {
	case PutRow:
		return fmt.Sprintf("put %s", o.Row)
	case DeleteRow:
		return fmt.Sprintf("delete %s", o.Row)
	case SetConfig:
		return fmt.Sprintf("configure pod levels %#x below %#x, kubelet levels %#x, lock %t, guard %t", o.Config.PodLevels, o.Config.PodRootLevels, o.Config.KubeletLevels, o.Config.ProbeLock, o.Config.Guard)
	case AttachRoot:
		return "attach probe allowance and guard to the root cgroup"
	case AttachPod:
		return fmt.Sprintf("attach VRF binding to pod %s at %s", o.PodUID, o.Path)
	case DetachPod:
		return fmt.Sprintf("detach VRF binding from pod %s", o.PodUID)
	case AttachDoor:
		return fmt.Sprintf("guard %s", o.Row)
	case DetachDoor:
		return fmt.Sprintf("stop guarding interface %d", o.Door)
	}
	return fmt.Sprintf("operation %d", o.Kind)
}

// The phases are ordered so that a partially applied change restricts too much,
// never too little.
const (
	revokeAccess = iota
	configure
	addRestrictions
	attach
	grantAccess
	detach
	removeRestrictions
)

// grantsAccess reports whether a row allows something: binding sockets for a
// destination to the VRF, kubelet's probes, redirecting a connection into a network, open
// ports, or packet sockets on an interface. All other rows restrict.
func grantsAccess(r loader.Row) bool {
	switch r := r.(type) {
	case loader.DestRow:
		return r.NetworkID != loader.Masquerade // whose rows forbid
	case loader.ClusterIPRow, loader.KubeletRow, loader.NetRow, loader.LocalRow, loader.ProbeRow, loader.OpenRow:
		return true
	case loader.DoorRow:
		return r.Kind == loader.DoorOwn
	}
	return false
}

// Enforces reports whether pods are restricted too little until the operation is
// done.
func (o Op) Enforces() bool {
	switch o.Kind {
	case SetConfig, AttachRoot, AttachDoor:
		return true
	case PutRow:
		switch r := o.Row.(type) {
		case loader.LockedRow:
			return true
		case loader.DestRow:
			return r.NetworkID == loader.Masquerade
		}
	}
	return false
}

// Diff returns the operations that change the actual state have to the desired state
// want.
func Diff(want, have State) []Op {
	var ops []Op
	for k, r := range have.Rows {
		if p, ok := r.(loader.PodRow); ok {
			if left, ok := want.leftRow(p); ok {
				if left != p {
					ops = append(ops, Op{Kind: PutRow, Row: left, phase: addRestrictions})
				}
				continue
			}
		}
		if _, ok := want.Rows[k]; !ok {
			ops = append(ops, Op{Kind: DeleteRow, Row: r, phase: pick(grantsAccess(r), revokeAccess, removeRestrictions)})
		}
	}
	for k, r := range want.Rows {
		if d, ok := r.(loader.DoorRow); ok && want.Doors[d.Ifindex] {
			if have.Rows[k] != r || !have.Doors[d.Ifindex] {
				ops = append(ops, Op{Kind: AttachDoor, Row: r, phase: attach})
			}
			continue
		}
		if have.Rows[k] != r {
			ops = append(ops, Op{Kind: PutRow, Row: r, phase: pick(grantsAccess(r), grantAccess, addRestrictions)})
		}
	}
	if want.Config != have.Config {
		ops = append(ops, Op{Kind: SetConfig, Config: want.Config, phase: configure})
	}
	if want.Root && !have.Root {
		ops = append(ops, Op{Kind: AttachRoot, phase: attach})
	}
	for uid, cg := range want.Pods {
		if have.Pods[uid].ID != cg.ID {
			ops = append(ops, Op{Kind: AttachPod, PodUID: uid, Path: cg.Path, Row: want.Rows[loader.PodRow{CgroupID: cg.ID}.Key()], phase: attach})
		}
	}
	for uid, cg := range have.Pods {
		_, wanted := want.Pods[uid]
		if left, ok := want.left(uid); ok {
			row, ok := have.Rows[loader.PodRow{CgroupID: left.ID}.Key()].(loader.PodRow)
			if ok && left.ID != cg.ID { // the attachment is incomplete, or of an earlier cgroup
				row, _ = want.leftRow(row)
				ops = append(ops, Op{Kind: AttachPod, PodUID: uid, Path: left.Path, Row: row, phase: attach})
			}
			if ok || left.ID == cg.ID {
				continue
			}
		}
		if !wanted {
			ops = append(ops, Op{Kind: DetachPod, PodUID: uid, phase: detach})
		}
	}
	for ifindex := range have.Doors {
		if !want.Doors[ifindex] {
			ops = append(ops, Op{Kind: DetachDoor, Door: ifindex, phase: detach})
		}
	}
	slices.SortFunc(ops, func(a, b Op) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.String(), b.String()))
	})
	return ops
}

// left returns the cgroup of a pod whose row and attachment stay: of one in Keep or in Gone.
func (s State) left(uid string) (Cgroup, bool) {
	if cg, ok := s.Keep[uid]; ok {
		return cg, true
	}
	cg, ok := s.Gone[uid]
	return cg, ok
}

// leftRow returns the row that a pod in Keep or in Gone keeps; ok is false for other pods. While its network's id has the same
// VRF device, the row stays. If the id has another device, the row gets NoNetwork, so that the pod's processes cannot enter
// the next network with the id. The row of a pod in Keep also stays while no network has the id.
func (s State) leftRow(p loader.PodRow) (row loader.PodRow, ok bool) {
	kept, gone := contains(s.Keep, p.CgroupID), contains(s.Gone, p.CgroupID)
	if !kept && !gone {
		return p, false
	}
	if p.NetworkID == 0 || p.NetworkID == loader.NoNetwork {
		return p, true // the row depends on no network
	}
	n, exists := s.Rows[loader.NetRow{NetworkID: p.NetworkID}.Key()].(loader.NetRow)
	if exists && n.VRFIfindex != 0 && n.VRFIfindex == p.VRFIfindex || kept && !exists {
		return p, true
	}
	return loader.PodRow{CgroupID: p.CgroupID, NetworkID: loader.NoNetwork, Mark: network.NoNetworkMark}, true
}

func contains(cgroups map[string]Cgroup, id uint64) bool {
	for _, cg := range cgroups {
		if cg.ID == id {
			return true
		}
	}
	return false
}

// pick returns a if c is true, else b.
func pick(c bool, a, b int) int {
	if c {
		return a
	}
	return b
}
