// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckTransport(t *testing.T) {
	overlay, none := Network{}, Network{Transport: TransportNoOverlay}
	for _, tt := range []struct {
		installed  string
		configured Network
		want       string // part of the error; "": none
	}{
		{"", overlay, ""}, {"", none, ""}, {"geneve", overlay, ""}, {"no-overlay", none, ""},
		{"geneve", none, "it is no-overlay, and the cluster was installed with geneve"},
		{"no-overlay", overlay, "set it back to no-overlay"},
		{"other", overlay, "installed with other"},
	} {
		err := CheckTransport(tt.installed, tt.configured)
		if (err != nil) != (tt.want != "") || err != nil && (!errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("installed %q, configured %q: %v, want %q", tt.installed, InstalledTransport(tt.configured), err, tt.want)
		}
	}
	if got := InstalledTransport(overlay) + " " + InstalledTransport(none); got != "geneve no-overlay" {
		t.Error(got)
	}
}
