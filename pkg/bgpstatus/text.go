// SPDX-License-Identifier: Apache-2.0

package bgpstatus

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"bulkhead/pkg/network"
)

// Write writes the status as tables.
func (s *Status) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "Node %s, gateway mode %s\n\n", s.Node, s.Mode)
	fmt.Fprintln(w, "NETWORK\tVRF\tANNOUNCES")
	for _, n := range s.Networks {
		if len(n.VRFs) == 0 && !n.NoOverlay {
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", n.Name, cmp.Or(strings.Join(n.VRFs, ","), "-"), names(n.Prefixes))
	}
	fmt.Fprintln(w, "\nVRF\tPEER\tSTATE\tSINCE\tRECEIVED\tSENT")
	for _, x := range s.Sessions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\n", x.VRF, x.Peer, x.State, x.Uptime, x.Received, x.Sent)
	}
	fmt.Fprintln(w, "\nVRF\tLEARNED\tNEXT HOPS\tKERNEL\tOVN")
	for _, v := range s.VRFs {
		for _, r := range v.Learned {
			inOVN := "-" // OVN does not import this route
			if s.Mode != network.LocalGateway && v.Name == network.VRFDefault && s.imported(r.Prefix) {
				inOVN = yesNo(hasRoute(s.OVN, r.Prefix))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", v.Name, r.Prefix, names(r.NextHops), yesNo(hasRoute(v.Kernel, r.Prefix)), inOVN)
		}
	}
	fmt.Fprintln(w)
	if len(s.Differences) == 0 {
		fmt.Fprintln(w, "No differences.")
	}
	for _, d := range s.Differences {
		fmt.Fprintln(w, "Difference: "+d)
	}
	return w.Flush()
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
