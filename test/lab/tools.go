// SPDX-License-Identifier: Apache-2.0

//go:build tools

package lab

// Programs of other modules that the lab builds.
import _ "github.com/containernetworking/plugins/plugins/main/loopback"
