// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"bulkhead/pkg/network"
)

// Released reports whether a NAD is being deleted and no pod uses it: the cluster controller has removed its finalizers. Such a
// NAD counts as deleted. It gets no new settings any more, and the finalizer of another program, or of a tenant, may keep
// the object for ever.
func Released(obj *nadv1.NetworkAttachmentDefinition) bool {
	return obj.DeletionTimestamp != nil && !slices.ContainsFunc(obj.Finalizers, func(f string) bool { return f == network.FinalizerUDN || f == network.FinalizerNAD })
}

// ParseNAD parses a NetworkAttachmentDefinition. ours is false for NADs of other
// CNI plugins. The Err of an unusable NAD is set, so that its pods' events can
// report it. Its Network then has only the name and id that the cluster controller wrote on the NAD, if any: a mistyped
// or unreadable configuration must not make the network look deleted.
func ParseNAD(obj *nadv1.NetworkAttachmentDefinition, plan network.Plan) (nad network.NAD, ours bool) {
	nad, ours = parseNAD(obj, plan)
	if name := obj.Annotations[network.AnnotationNetworkName]; name != "" && nad.Err != nil {
		id, _ := strconv.Atoi(obj.Annotations[network.AnnotationNetworkID]) // 0 if malformed
		nad.Network = network.Network{Name: name, ID: id}
	}
	return nad, ours
}

func parseNAD(obj *nadv1.NetworkAttachmentDefinition, plan network.Plan) (nad network.NAD, ours bool) {
	nad = network.NAD{Namespace: obj.Namespace, Name: obj.Name, Deleting: obj.DeletionTimestamp != nil}
	conf, err := network.ParseNetConf(obj.Spec.Config)
	if errors.Is(err, network.ErrForeign) {
		return nad, false
	}
	if err != nil {
		nad.Err = err
		return nad, true
	}
	nad.Network.Name = conf.Name
	raw, ok := obj.Annotations[network.AnnotationNetworkID]
	if !ok {
		nad.Err = errors.New("no network id yet: the cluster controller assigns one")
		return nad, true
	}
	if name := obj.Annotations[network.AnnotationNetworkName]; name != "" && name != conf.Name {
		nad.Err = fmt.Errorf("no network id yet: its id is still that of network %s", name)
		return nad, true
	}
	id, err := strconv.Atoi(raw)
	if err != nil {
		nad.Err = fmt.Errorf("annotation %s %q is not a number", network.AnnotationNetworkID, raw)
		return nad, true
	}
	nad.Network, nad.Err = conf.Network(id, plan)
	// Only ClusterUserDefinedNetworks are advertised: a tenant cannot have one.
	if _, ok := network.CutCUDN(conf.Name); ok {
		nad.Network.AdvertisedVRFs = obj.Annotations[network.AnnotationAdvertisedVRFs]
	}
	if nad.Err == nil {
		nad.Err = plan.Conflict(nad.Network)
	}
	return nad, true
}
