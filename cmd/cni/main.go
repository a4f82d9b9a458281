// SPDX-License-Identifier: Apache-2.0

// Command cni is the CNI plugin that the container runtime calls, installed as
// ovn-k8s-cni-overlay. It forwards the call to the agent's socket and prints the
// agent's response. It starts for every pod, so it imports little and implements
// the HTTP/1.0 that it needs.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

const (
	defaultSocket = "/var/run/bulkhead/cni.sock"
	// timeout is longer than the agent's timeouts and shorter than kubelet's.
	timeout = 150 * time.Second
	// versions is what the agent supports. Runtimes may call VERSION before the
	// agent runs.
	versions = `{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`
	// codeTryLater and codeUnavailable are error codes of the CNI specification.
	codeTryLater    = 11
	codeUnavailable = 50
)

// variables are the environment variables of the CNI specification.
var variables = []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"}

func main() {
	out, ok := run(os.Stdin, os.Getenv)
	_, _ = os.Stdout.Write(out)
	if !ok {
		os.Exit(1)
	}
}

// run returns what to print, and whether the call succeeded.
func run(stdin io.Reader, getenv func(string) string) (out []byte, ok bool) {
	if getenv("CNI_COMMAND") == "VERSION" {
		return []byte(versions), true
	}
	config, err := io.ReadAll(stdin)
	if err != nil {
		return failure("", codeTryLater, fmt.Errorf("read the network configuration: %w", err))
	}
	var conf struct {
		CNIVersion string `json:"cniVersion"`
		Socket     string `json:"socket"`
	}
	_ = json.Unmarshal(config, &conf) // the agent reports malformed configurations
	if conf.Socket == "" {
		conf.Socket = defaultSocket
	}
	env := map[string]string{}
	for _, v := range variables {
		env[v] = getenv(v)
	}
	body, err := json.Marshal(struct {
		Env    map[string]string `json:"env"`
		Config []byte            `json:"config"`
	}{env, config})
	if err != nil {
		return failure(conf.CNIVersion, codeTryLater, err)
	}
	out, ok, err = post(conf.Socket, body)
	if err != nil {
		code := codeTryLater
		if getenv("CNI_COMMAND") == "STATUS" {
			code = codeUnavailable
		}
		return failure(conf.CNIVersion, code, fmt.Errorf("call the bulkhead agent (is it running on this node?): %w", err))
	}
	return out, ok
}

// post sends body and returns the response's body, and whether its status is 200.
func post(socket string, body []byte) ([]byte, bool, error) {
	conn, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		return nil, false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, false, err
	}
	head := fmt.Sprintf("POST / HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body))
	if _, err := conn.Write(append([]byte(head), body...)); err != nil {
		return nil, false, err
	}
	return parse(conn)
}

// parse reads an HTTP/1.0 response, which ends with the connection.
func parse(r io.Reader) ([]byte, bool, error) {
	raw, err := io.ReadAll(bufio.NewReader(r))
	if err != nil {
		return nil, false, err
	}
	head, body, found := bytes.Cut(raw, []byte("\r\n\r\n"))
	fields := strings.Fields(string(head))
	if !found || len(fields) < 2 || !strings.HasPrefix(fields[0], "HTTP/1.") {
		return nil, false, errors.New("the connection ended before the response: the agent may have restarted")
	}
	return body, fields[1] == "200", nil
}

// failure renders a CNI error.
func failure(version string, code int, err error) ([]byte, bool) {
	out, jsonErr := json.Marshal(struct {
		CNIVersion string `json:"cniVersion,omitempty"`
		Code       int    `json:"code"`
		Msg        string `json:"msg"`
	}{version, code, err.Error()})
	if jsonErr != nil {
		out = []byte(`{"code":11,"msg":"cannot render the error"}`)
	}
	return out, false
}
