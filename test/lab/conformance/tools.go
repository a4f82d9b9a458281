// SPDX-License-Identifier: Apache-2.0

//go:build tools

package conformance

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
