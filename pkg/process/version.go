// SPDX-License-Identifier: Apache-2.0

package process

// version is set by the build of the image (deploy/image).
var version = "unknown"

// Version returns the version of the product: what git said when the image was built, or the argument of that build.
func Version() string { return version }
