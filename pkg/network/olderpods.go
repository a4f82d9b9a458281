// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"
	"strings"
)

// WithoutPrimary reports whether the pod has the cluster default network as its
// primary network. In a namespace with LabelPrimaryUDN such a pod was created
// before the label, or before Bulkhead enforced it.
func (p PodNetworks) WithoutPrimary() bool {
	n, ok := p[DefaultName]
	return ok && n.Role != RoleInfrastructureLocked
}

// OlderPods returns the error for new pods of a namespace in which the given
// pods run without the primary network, nil if there are none. New pods are
// refused because old and new pods could not reach each other, and every pod of
// the cluster could reach the old ones.
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
	return fmt.Errorf("namespace %s has the label %s, but pods that were created before its primary network run without it (%s): delete them, or recreate the namespace with the label",
		namespace, LabelPrimaryUDN, list)
}
