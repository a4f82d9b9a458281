// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"bulkhead/pkg/network"
)

// Wire is the plugin's message: the environment variables and the standard
// input that the runtime passed to the plugin, both unparsed.
type Wire struct {
	Env    map[string]string `json:"env"`
	Config []byte            `json:"config"`
}

// Request is one parsed CNI call.
type Request struct {
	Command    string // ADD, DEL, CHECK, STATUS, GC or VERSION
	CNIVersion string
	Network    string // the configuration's name
	Sandbox    string
	NetNS      string // path
	IfName     string
	Namespace  string
	Pod        string
	UID        string
	// NAD is the NAD key of the secondary network that a meta plugin attaches.
	// If empty, the call is for the cluster default network and the pod's
	// primary network.
	NAD string
	// Valid lists the attachments that GC must keep.
	Valid []ValidAttachment
}

// ValidAttachment is an entry of GC's list.
type ValidAttachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// Versions lists the supported versions of the CNI specification.
var Versions = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// requestError says what is invalid in a request. Its value is the CNI specification's code.
type requestError uint

// Error implements error.
func (requestError) Error() string { return "invalid request" }

// What is invalid (CNI specification 1.1, "Error").
const (
	errVersion     = requestError(cnitypes.ErrIncompatibleCNIVersion)
	errEnvironment = requestError(cnitypes.ErrInvalidEnvironmentVariables)
	errDecode      = requestError(cnitypes.ErrDecodingFailure)
	errConfig      = requestError(cnitypes.ErrInvalidNetworkConfig)
)

// ParseRequest parses the plugin's message. It ignores unknown keys of the
// configuration, which may be for other plugins or the runtime.
func ParseRequest(body []byte) (Request, error) {
	var w Wire
	if err := json.Unmarshal(body, &w); err != nil {
		return Request{}, fmt.Errorf("%w: %w", errDecode, err)
	}
	var conf struct {
		CNIVersion       string            `json:"cniVersion"`
		Name             string            `json:"name"`
		NetAttachDefName string            `json:"netAttachDefName"`
		Valid            []ValidAttachment `json:"cni.dev/valid-attachments"`
		ValidOld         []ValidAttachment `json:"cni.dev/attachments"`
	}
	r := Request{Command: w.Env["CNI_COMMAND"], Sandbox: w.Env["CNI_CONTAINERID"], NetNS: w.Env["CNI_NETNS"], IfName: w.Env["CNI_IFNAME"]}
	if r.Command != "VERSION" || len(w.Config) > 0 {
		if err := json.Unmarshal(w.Config, &conf); err != nil {
			return r, fmt.Errorf("%w: network configuration: %w", errDecode, err)
		}
	}
	r.CNIVersion, r.Network, r.NAD, r.Valid = conf.CNIVersion, conf.Name, conf.NetAttachDefName, append(conf.Valid, conf.ValidOld...)
	if r.CNIVersion == "" {
		r.CNIVersion = "0.3.0"
	}
	if r.NAD == network.DefaultName {
		r.NAD = ""
	}
	for _, pair := range strings.Split(w.Env["CNI_ARGS"], ";") {
		k, v, _ := strings.Cut(pair, "=")
		switch k {
		case "K8S_POD_NAMESPACE":
			r.Namespace = v
		case "K8S_POD_NAME":
			r.Pod = v
		case "K8S_POD_UID":
			r.UID = v
		}
	}
	return r, r.validate()
}

func (r Request) validate() error {
	missing := func(what requestError, field string) error {
		return fmt.Errorf("%w: %s has no %s", what, r.Command, field)
	}
	switch r.Command {
	case "VERSION", "STATUS":
		return nil
	case "GC":
		if r.Network == "" {
			return missing(errConfig, "name in its network configuration")
		}
		return nil
	case "ADD", "DEL", "CHECK":
	default:
		return fmt.Errorf("%w: CNI_COMMAND %q is unknown", errEnvironment, r.Command)
	}
	if !slices.Contains(Versions, r.CNIVersion) {
		return fmt.Errorf("%w: cniVersion %q is not supported: use one of %s", errVersion, r.CNIVersion, strings.Join(Versions, ", "))
	}
	if err := validName(r.Sandbox, 256); err != nil {
		return fmt.Errorf("%w: CNI_CONTAINERID: %w", errEnvironment, err)
	}
	if err := validName(r.IfName, 15); err != nil {
		return fmt.Errorf("%w: CNI_IFNAME: %w", errEnvironment, err)
	}
	if r.Network == "" {
		return missing(errConfig, "name in its network configuration")
	}
	if r.Command == "DEL" {
		return nil // CNI allows a DEL without the other fields
	}
	switch {
	case r.NetNS == "":
		return missing(errEnvironment, "CNI_NETNS")
	case r.Namespace == "" || r.Pod == "":
		return missing(errEnvironment, "K8S_POD_NAMESPACE and K8S_POD_NAME in CNI_ARGS")
	case r.NAD == "" && r.Network != NetworkName:
		return fmt.Errorf("%w: network configuration %q has no netAttachDefName: set it to <namespace>/<name> of the NetworkAttachmentDefinition", errConfig, r.Network)
	case r.NAD == "" && r.IfName != runtimeInterface:
		// A meta plugin would connect the pod to the default network once more, in place of its interface.
		return fmt.Errorf("%w: the network configuration of interface %s has no netAttachDefName, and only %s is of the cluster default network: set it to <namespace>/<name> of the NetworkAttachmentDefinition", errConfig, r.IfName, runtimeInterface)
	}
	return nil
}

// validName checks a name that is used in external_ids or as an interface name.
func validName(s string, limit int) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case len(s) > limit:
		return fmt.Errorf("is longer than %d characters", limit)
	case s == "." || s == "..":
		return fmt.Errorf("%q is not a valid name", s)
	}
	for _, c := range s {
		if c <= ' ' || c > '~' || c == '/' || c == ':' {
			return fmt.Errorf("%q has an invalid character", s)
		}
	}
	return nil
}

// Attachment identifies an ADD by network configuration and interface. A DEL
// with the same attachment undoes it.
func (r Request) Attachment() string { return r.Network + "/" + r.IfName }

// IfNames returns the pod's interfaces that r may configure, without those that the
// pod requests.
func (r Request) IfNames() []string {
	if r.NAD != "" || r.Network != NetworkName || r.IfName != runtimeInterface {
		return []string{r.IfName}
	}
	return []string{r.IfName, network.PrimaryInterface}
}
