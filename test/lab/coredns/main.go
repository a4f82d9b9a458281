// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with the plugins that the lab's Corefile names.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/chaos"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	// The order in which plugins are asked, as in CoreDNS's own plugin.cfg.
	dnsserver.Directives = []string{"ready", "errors", "chaos", "cache", "loadbalance", "kubernetes"}
	coremain.Run()
}
