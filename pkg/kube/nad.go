// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"strconv"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"bulkhead/pkg/network"
)

// ParseNAD is what a NetworkAttachmentDefinition says about its network. ours
// is false for NADs of other CNI plugins. A NAD that cannot be used comes back
// with Err set, so that what depends on it can say why it waits.
func ParseNAD(obj *nadv1.NetworkAttachmentDefinition, plan network.Plan) (nad network.NAD, ours bool) {
	nad = network.NAD{Namespace: obj.Namespace, Name: obj.Name}
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
		nad.Err = errors.New("no network id yet: the cluster controller gives it")
		return nad, true
	}
	if of := obj.Annotations[network.AnnotationNetworkName]; of != "" && of != conf.Name {
		nad.Err = fmt.Errorf("no network id yet: the one it has is of network %s", of)
		return nad, true
	}
	id, err := strconv.Atoi(raw)
	if err != nil {
		nad.Err = fmt.Errorf("annotation %s %q is not a number", network.AnnotationNetworkID, raw)
		return nad, true
	}
	nad.Network, nad.Err = conf.Network(id, plan)
	if nad.Err == nil {
		nad.Err = plan.Conflict(nad.Network)
	}
	return nad, true
}
