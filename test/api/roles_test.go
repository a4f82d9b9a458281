// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	udnv1 "bulkhead/api/v1"
)

// A tenant who may edit a namespace, by Kubernetes' own role, makes its networks
// there and nowhere else; one who may view it sees them.
func TestTenantRoles(t *testing.T) {
	needAPI(t)
	w := newWorld(t)
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
	as := func(user string) client.Client {
		c, err := client.New(as("roles-"+user), client.Options{Scheme: w.Scheme()})
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
	// The roles are put together some time after they are installed.
	eventually(t, func() error { return create(as("edit"), home.Name) })
	eventually(t, func() error { return list(as("view"), home.Name) })
	for what, err := range map[string]error{
		"a viewer makes one": create(as("view"), home.Name), "an editor makes one elsewhere": create(as("edit"), elsewhere.Name),
		"an editor sees those elsewhere":     list(as("edit"), elsewhere.Name),
		"an editor makes a cluster-wide one": as("edit").Create(t.Context(), &udnv1.ClusterUserDefinedNetwork{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-"}}, client.DryRunAll),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, fmt.Sprint(err))
		}
	}
}
