// SPDX-License-Identifier: Apache-2.0

package podaddr

import (
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func nadCreated(n *nadv1.NetworkAttachmentDefinition) event.TypedCreateEvent[*nadv1.NetworkAttachmentDefinition] {
	return event.TypedCreateEvent[*nadv1.NetworkAttachmentDefinition]{Object: n}
}
