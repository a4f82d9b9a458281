// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the k8s.ovn.org/v1 types: what tenants and administrators
// write to ask for a network. Everything the API server can judge alone is a
// validation marker here, so that a mistake is refused when it is made; what
// needs a look at other objects is judged by the cluster role and reported in
// status.
//
// +kubebuilder:object:generate=true
// +groupName=k8s.ovn.org
package v1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.22.0 object paths=. crd:allowDangerousTypes=false output:crd:dir=../../deploy/crds
