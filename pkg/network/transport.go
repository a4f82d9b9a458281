// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
)

// Transports, as in [default] transport of the configuration.
const (
	TransportGeneve = "geneve"
	// TransportNoOverlay routes packets between nodes without encapsulation. NAD JSON has
	// the same spelling.
	TransportNoOverlay = "no-overlay"
)

// ErrTransport is the error of a process whose configuration has another transport for
// the cluster default network than the cluster was installed with.
var ErrTransport = errors.New("[default] transport cannot be changed after installation")

// InstalledTransport returns the value of AnnotationDefaultTransport for the cluster
// default network n.
func InstalledTransport(n Network) string {
	if n.Transport == "" {
		return TransportGeneve
	}
	return n.Transport
}

// CheckTransport returns an ErrTransport if installed, from AnnotationDefaultTransport,
// is not the configured transport of the cluster default network n. "" is a cluster or
// node that is not installed yet.
func CheckTransport(installed string, n Network) error {
	if configured := InstalledTransport(n); installed != "" && installed != configured {
		return fmt.Errorf("%w: it is %s, and the cluster was installed with %s: set it back to %s",
			ErrTransport, configured, installed, installed)
	}
	return nil
}
