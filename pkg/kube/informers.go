// SPDX-License-Identifier: Apache-2.0

package kube

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Consistent changes an informer's list options so that its first list is as recent as etcd. Where the API
// server cannot stream the first list, informers accept one of any age (resource version "0"): an API server that lags
// behind would leave out pods that run, and their ports would be deleted.
func Consistent(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
}
