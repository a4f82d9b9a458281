// SPDX-License-Identifier: Apache-2.0

package kube

import "k8s.io/apimachinery/pkg/util/resourceversion"

// AtLeast reports whether resource version a is b or a later one. A version that cannot be compared
// counts as later, which costs those who wait for it at most one write.
func AtLeast(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || c >= 0
}
