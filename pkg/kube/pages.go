// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects of a list one answer holds.
const pageSize = 500

// EachPage reads a list from the API server page by page, as all of it at once
// may be very large. empty says of what kind.
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
