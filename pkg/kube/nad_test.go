// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"bulkhead/pkg/config"
	"bulkhead/pkg/network"
)

func TestParseNAD(t *testing.T) {
	cfg, err := config.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	const good = `{"name":"cluster_udn_red","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.20.0.0/16"}`
	for name, tt := range map[string]struct {
		config, id string
		ours       bool
		want       string // part of the error
	}{
		"good":           {good, "7", true, ""},
		"another plugin": {`{"name":"x","type":"macvlan"}`, "", false, ""},
		"no id yet":      {good, "", true, "no network id yet"},
		"id no number":   {good, "seven", true, "not a number"},
		"id too large":   {good, "10001", true, "outside 1..10000"},
		"renamed":        {good, "7", true, "of network previous"},
		"malformed":      {`{`, "7", true, "not valid JSON"},
		"overlaps ours":  {strings.Replace(good, "10.20.0.0", "10.244.0.0", 1), "7", true, "cluster-subnets"},
	} {
		obj := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "red"}}
		obj.Spec.Config = tt.config
		if tt.id != "" {
			obj.Annotations = map[string]string{network.AnnotationNetworkID: tt.id}
		}
		if name == "renamed" {
			obj.Annotations[network.AnnotationNetworkName] = "previous"
		}
		nad, ours := ParseNAD(obj, cfg.Plan)
		if ours != tt.ours || nad.Key() != "a/red" {
			t.Errorf("%s: ours %v, key %s", name, ours, nad.Key())
		}
		if (nad.Err == nil) != (tt.want == "") || nad.Err != nil && !strings.Contains(nad.Err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", name, nad.Err, tt.want)
		}
		if tt.ours && tt.want == "" && nad.Network.ID != 7 {
			t.Errorf("%s: id %d", name, nad.Network.ID)
		}
	}
}

// A tenant's network is not advertised, whatever its NAD says.
func TestParseNADAdvertised(t *testing.T) {
	cfg, err := config.Parse("")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"cluster_udn_red": "default", "red_net": "", "by-hand": ""} {
		obj := &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "net", Annotations: map[string]string{
			network.AnnotationNetworkID: "7", network.AnnotationAdvertisedVRFs: "default",
		}}}
		obj.Spec.Config = `{"name":"` + name + `","type":"ovn-k8s-cni-overlay","topology":"layer3","role":"primary","subnets":"10.20.0.0/16"}`
		nad, _ := ParseNAD(obj, cfg.Plan)
		if nad.Err != nil || nad.Network.AdvertisedVRFs != want || nad.Network.Advertised() != (want != "") {
			t.Errorf("%s: advertised into %q, want %q (%v)", name, nad.Network.AdvertisedVRFs, want, nad.Err)
		}
	}
}
