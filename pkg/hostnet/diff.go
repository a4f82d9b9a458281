// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"cmp"
	"fmt"
	"slices"

	"bulkhead/pkg/loader"
)

// Kind is what an operation does.
type Kind int

const (
	PutRow Kind = iota
	DeleteRow
	SetConfig
	AttachRoot
	AttachPod
	DetachPod
)

// Op is one operation; it prints as one line.
type Op struct {
	Kind   Kind
	Row    loader.Row // PutRow, DeleteRow, AttachPod
	PodUID string     // AttachPod, DetachPod
	Path   string     // AttachPod
	Config loader.Config
	phase  int
}

func (o Op) String() string {
	switch o.Kind {
	case PutRow:
		return fmt.Sprintf("put %s", o.Row)
	case DeleteRow:
		return fmt.Sprintf("delete %s", o.Row)
	case SetConfig:
		return fmt.Sprintf("configure pod levels %#x, kubelet levels %#x, lock %t", o.Config.PodLevels, o.Config.KubeletLevels, o.Config.ProbeLock)
	case AttachRoot:
		return "attach probe allowance to the root cgroup"
	case AttachPod:
		return fmt.Sprintf("attach VRF binding to pod %s at %s", o.PodUID, o.Path)
	case DetachPod:
		return fmt.Sprintf("detach VRF binding from pod %s", o.PodUID)
	}
	return fmt.Sprintf("operation %d", o.Kind)
}

// The order that makes every half-applied change too closed, never too open.
const (
	removeReach = iota
	configure
	addIsolation
	attach
	addReach
	detach
	removeIsolation
)

// reach is true for rows that open something: a destination is bound to its
// VRF by one, kubelet is let through by the other. The rest closes.
func reach(r loader.Row) bool {
	switch r.(type) {
	case loader.DestRow, loader.KubeletRow:
		return true
	}
	return false
}

// Diff returns the operations that turn have into want.
func Diff(want, have State) []Op {
	var ops []Op
	for k, r := range have.Rows {
		if _, ok := want.Rows[k]; !ok {
			ops = append(ops, Op{Kind: DeleteRow, Row: r, phase: pick(reach(r), removeReach, removeIsolation)})
		}
	}
	for k, r := range want.Rows {
		if have.Rows[k] != r {
			ops = append(ops, Op{Kind: PutRow, Row: r, phase: pick(reach(r), addReach, addIsolation)})
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
	for uid := range have.Pods {
		if _, ok := want.Pods[uid]; !ok {
			ops = append(ops, Op{Kind: DetachPod, PodUID: uid, phase: detach})
		}
	}
	slices.SortFunc(ops, func(a, b Op) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.String(), b.String()))
	})
	return ops
}

func pick(c bool, a, b int) int {
	if c {
		return a
	}
	return b
}
