// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"strings"
)

// WithoutPrimary tells whether the pod was given the cluster default network
// and no primary network beside it. In a namespace with LabelPrimaryUDN such a
// pod is older than the label, or than what the label stands for.
func (p PodNetworks) WithoutPrimary() bool {
	n, ok := p[DefaultName]
	return ok && n.Role != RoleInfrastructureLocked
}

// OlderPods says why a namespace's pods get no network while those, by name,
// run there without the primary one: the two kinds could not reach each other,
// and the older could be reached by everybody. It is nil for none.
func OlderPods(namespace string, pods []string) error {
	if len(pods) == 0 {
		return nil
	}
	const most = 3
	names := slices.Sorted(slices.Values(pods))
	list := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("namespace %s has the label %s, but pods that are older than its primary network run there without it (%s): delete them, or create the namespace anew with the label",
		namespace, LabelPrimaryUDN, list)
}
