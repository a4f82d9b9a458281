//go:build tools

package lab

// Programs that the lab builds from other modules.
import _ "github.com/containernetworking/plugins/plugins/main/loopback"
