// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is the maximum number of objects in one response.
const pageSize = 500

// EachPage lists objects page by page, because a response with all objects may be
// very large. empty is an empty list of the kind.
func EachPage[L client.ObjectList](ctx context.Context, live client.Reader, empty L, use func(page L), opts ...client.ListOption) error {
	for token := ""; ; {
		page := empty.DeepCopyObject().(L)
		if err := live.List(ctx, page, append(slices.Clip(opts), client.Limit(pageSize), client.Continue(token))...); err != nil {
			return err
		}
		use(page)
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}

// ListMetadata returns the metadata of all objects of a kind of the core group.
func ListMetadata(ctx context.Context, live client.Reader, kind string, opts ...client.ListOption) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	empty := &metav1.PartialObjectMetadataList{}
	empty.SetGroupVersionKind(Metadata(kind + "List").GroupVersionKind())
	err := EachPage(ctx, live, empty, func(page *metav1.PartialObjectMetadataList) { all = append(all, page.Items...) }, opts...)
	return all, err
}
