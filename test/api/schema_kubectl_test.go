// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The columns of `kubectl get` for every topology, with and without a status.
func TestPrinterColumns(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	condition := func(kind, status, reason string) string {
		return fmt.Sprintf(`{"type":%q,"status":%q,"reason":%q,"message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}`, kind, status, reason)
	}
	created := condition("NetworkCreated", "True", "NetworkAttachmentDefinitionCreated") + "," +
		condition("NetworkAllocationSucceeded", "True", "NetworkAllocationSucceeded")
	udns, cudns, ras := "namespaces/default/userdefinednetworks", "clusteruserdefinednetworks", "routeadvertisements"
	for _, c := range []struct {
		schemaCase
		resource string
		status   string
		want     string // the cells except name and age; <none> for an empty one
	}{
		{schemaCase{name: "col-l3", kind: kindUDN, spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]")}, udns, "", "Layer3 Primary <none> <none> <none>"},
		{schemaCase{name: "col-l2", kind: kindUDN, spec: l2("role: Secondary, subnets: [10.100.0.0/16]")}, udns, `{"conditions":[` + created + `]}`, "Layer2 Secondary True True NetworkAttachmentDefinitionCreated"},
		{schemaCase{name: "col-l3", kind: kindNetwork, spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]")}, cudns,
			`{"conditions":[` + created + "," + condition("TransportAccepted", "True", "GeneveTransportAccepted") + `]}`,
			"Layer3 Primary True True GeneveTransportAccepted NetworkAttachmentDefinitionCreated"},
		{schemaCase{name: "col-l2", kind: kindNetwork, spec: l2("role: Primary, subnets: [10.100.0.0/16]")}, cudns,
			`{"conditions":[` + condition("NetworkCreated", "False", "NetworkAttachmentDefinitionSyncError") + `]}`,
			"Layer2 Primary False <none> <none> NetworkAttachmentDefinitionSyncError"},
		{schemaCase{name: "col-localnet", kind: kindNetwork, spec: localnet("role: Secondary, physicalNetworkName: x, subnets: [192.168.0.0/16]")}, cudns, "",
			"Localnet Secondary <none> <none> <none> <none>"},
		{schemaCase{name: "col-none", kind: kindNetwork, spec: l3("role: Primary, subnets: [{cidr: 10.100.0.0/16}]") + "\ntransport: NoOverlay\nnoOverlayOptions: {outboundSNAT: Enabled, routing: Managed}"}, cudns,
			`{"conditions":[` + created + "," + condition("TransportAccepted", "False", "NoOverlayRouteAdvertisementsIsMissing") + `]}`,
			"Layer3 Primary True True NoOverlayRouteAdvertisementsIsMissing NetworkAttachmentDefinitionCreated"},
		{schemaCase{name: "col-ra", kind: kindRA, spec: "targetVRF: auto\nnetworkSelectors: [{networkSelectionType: DefaultNetwork}]\nnodeSelector: {}\nfrrConfigurationSelector: {}\nadvertisements: [PodNetwork]"}, ras,
			`{"status":"Accepted"}`, `Accepted auto ["PodNetwork"]`},
	} {
		t.Run(c.resource+"/"+c.name, func(t *testing.T) {
			o, err := c.object(c.name, c.spec)
			if err != nil {
				t.Fatal(err)
			}
			w.create(o)
			defer w.remove(o)
			if c.status != "" {
				if err := w.Status().Patch(w.ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"status":`+c.status+`}`))); err != nil {
					t.Fatal(err)
				}
			}
			if got := tableRow(t, "/apis/k8s.ovn.org/v1/"+c.resource+"/"+c.name); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// tableRow returns the cells that kubectl shows of one object, except name and age.
func tableRow(t *testing.T, path string) string {
	t.Helper()
	cl, err := rest.HTTPClientFor(env.Admin)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, env.Admin.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := cl.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("%s: %d rows, status %s", path, len(table.Rows), resp.Status)
	}
	var cells []string
	for i, col := range table.ColumnDefinitions {
		if col.Name == "Name" || col.Name == "Age" {
			continue
		}
		cell := "<none>"
		if v := table.Rows[0].Cells[i]; v != nil {
			cell = fmt.Sprint(v)
		}
		cells = append(cells, cell)
	}
	return strings.Join(cells, " ")
}

// Every field of our CRDs has a description for `kubectl explain` that starts with
// the field's name and fits on a screen.
func TestExplain(t *testing.T) {
	crds, err := readObjects(filepath.Join(Root(), "deploy", "crds"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := 0
	for _, crd := range crds {
		if group, _, _ := unstructured.NestedString(crd.Object, "spec", "group"); group != "k8s.ovn.org" {
			continue
		}
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		schema, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
		kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		if d, _ := schema["description"].(string); d == "" {
			t.Errorf("%s has no description", kind)
		}
		fields := checkDescriptions(t, kind, schema)
		if fields < 10 {
			t.Errorf("%s: %d fields checked, want at least 10", kind, fields)
		}
		t.Logf("%s: %d fields", kind, fields)
		kinds++
	}
	if kinds < 3 {
		t.Errorf("%d CRDs checked, want at least 3", kinds)
	}
}

// checkDescriptions checks the fields below path and returns their number.
func checkDescriptions(t *testing.T, path string, s map[string]any) (n int) {
	t.Helper()
	properties, _ := s["properties"].(map[string]any)
	for name, v := range properties {
		p := v.(map[string]any)
		if strings.HasSuffix(path, ".conditions") || strings.HasSuffix(path, "Selector") && strings.HasPrefix(name, "match") ||
			name == "apiVersion" || name == "kind" || name == "metadata" {
			continue // Kubernetes' own
		}
		n++
		d, _ := p["description"].(string)
		if !strings.HasPrefix(d, name+" ") && !strings.HasPrefix(d, name+": ") {
			t.Errorf("%s.%s: the description %q does not start with the name", path, name, d)
		}
		if lines := strings.Count(d, "\n") + len(d)/80; lines > 24 {
			t.Errorf("%s.%s: the description has %d lines", path, name, lines)
		}
		n += checkDescriptions(t, path+"."+name, p)
	}
	if items, ok := s["items"].(map[string]any); ok {
		n += checkDescriptions(t, path, items)
	}
	return n
}
