// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pages is a reader with the given number of pages of one pod each. It fails at
// page failAt.
type pages struct {
	client.Reader
	count, failAt int
}

var errBroken = errors.New("broken")

func (p pages) List(_ context.Context, l client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	page := 1
	if o.Continue != "" {
		if _, err := fmt.Sscan(o.Continue, &page); err != nil {
			return err
		}
	}
	switch {
	case page == p.failAt:
		return errBroken
	case o.Limit != pageSize || o.Namespace != "red":
		return fmt.Errorf("page %d is requested with %+v", page, o)
	case l.(*corev1.PodList).Items != nil:
		return fmt.Errorf("page %d is read into a list that is not empty", page)
	}
	l.(*corev1.PodList).Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", page)}}}
	if page < p.count {
		l.SetContinue(fmt.Sprint(page + 1))
	}
	return nil
}

func TestEachPage(t *testing.T) {
	for _, c := range []struct {
		from pages
		want string
		err  error
	}{
		{pages{count: 1}, "[p1]", nil},
		{pages{count: 3}, "[p1 p2 p3]", nil},
		{pages{count: 3, failAt: 2}, "[p1]", errBroken},
	} {
		var got []string
		err := EachPage(t.Context(), c.from, &corev1.PodList{}, func(l *corev1.PodList) { got = append(got, l.Items[0].Name) }, client.InNamespace("red"))
		if !errors.Is(err, c.err) || fmt.Sprint(got) != c.want {
			t.Errorf("%+v: got %v, %v; want %s, %v", c.from, got, err, c.want, c.err)
		}
	}
}
