// SPDX-License-Identifier: Apache-2.0

package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Consistent changes an informer's list options so that its first list is as recent as etcd. Where the API
// server cannot stream the first list, informers accept one of any age (resource version "0"): an API server that lags
// behind would leave out pods that run, and their ports would be deleted.
func Consistent(o *metav1.ListOptions) {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
}

// NewServiceInformer is an informer of the Services of all namespaces that a cluster's default service proxy serves. Others
// have a label: another proxy serves them, or nobody does. kube-proxy leaves out the same.
func NewServiceInformer(k kubernetes.Interface) cache.SharedIndexInformer {
	return informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		Consistent(o)
		o.LabelSelector = "!" + labelServiceProxyName + ",!" + corev1.IsHeadlessService
	})).Core().V1().Services().Informer()
}

// labelServiceProxyName names the proxy of a Service (k8s.io/kubernetes/pkg/proxy/apis).
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"
