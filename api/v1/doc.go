// SPDX-License-Identifier: Apache-2.0

// Package v1 holds the k8s.ovn.org/v1 types, with which tenants and administrators
// request networks. Checks that need only the object itself are validation
// markers, so that the API server refuses mistakes immediately. The cluster controller
// makes the checks that need other objects and reports them in status.
//
// +kubebuilder:object:generate=true
// +groupName=k8s.ovn.org
package v1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.22.0 object paths=. crd:allowDangerousTypes=false output:crd:dir=../../deploy/crds
