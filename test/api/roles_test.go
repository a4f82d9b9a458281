// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
)

// With Kubernetes' role edit in a namespace, a tenant creates networks there and
// nowhere else; with the role view, a tenant lists them.
func TestTenantRoles(t *testing.T) {
	needAPI(t)
	w := newFixture(t)
	admin := nadClient(t, env.Admin)
	home, elsewhere := &corev1.Namespace{}, &corev1.Namespace{}
	for _, ns := range []*corev1.Namespace{home, elsewhere} {
		ns.GenerateName = "roles-"
		if err := admin.Create(t.Context(), ns); err != nil {
			t.Fatal(err)
		}
	}
	for _, role := range []string{"edit", "view"} {
		b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: home.Name, Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "roles-" + role}}}
		if err := admin.Create(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	clientOf := func(user string) client.Client {
		c, err := client.New(impersonate("roles-"+user), client.Options{Scheme: w.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	create := func(c client.Client, ns string) error {
		return c.Create(t.Context(), newUDN(ns, "net", "10.150.0.0/16"), client.DryRunAll)
	}
	list := func(c client.Client, ns string) error {
		return c.List(t.Context(), &udnv1.UserDefinedNetworkList{}, client.InNamespace(ns))
	}
	// Kubernetes aggregates the roles some time after they are installed.
	Eventually(t, func() error { return create(clientOf("edit"), home.Name) })
	Eventually(t, func() error { return list(clientOf("view"), home.Name) })
	for write, err := range map[string]error{
		"a viewer creates a network": create(clientOf("view"), home.Name), "an editor creates a network elsewhere": create(clientOf("edit"), elsewhere.Name),
		"an editor lists networks elsewhere":       list(clientOf("edit"), elsewhere.Name),
		"an editor creates a cluster-wide network": clientOf("edit").Create(t.Context(), &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, client.DryRunAll),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want forbidden", write, err)
		}
	}
}
