// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	f.Add("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}")
	f.Add("HTTP/1.0 500 Internal Server Error\r\n\r\n{\"code\":100}")
	f.Add("")
	f.Fuzz(func(t *testing.T, raw string) {
		body, ok, err := parse(strings.NewReader(raw))
		if err != nil && (ok || body != nil) {
			t.Errorf("%q: got %q, %v, %v", raw, body, ok, err)
		}
		if err == nil && ok && !strings.Contains(raw, "200") {
			t.Errorf("%q: parsed as a success", raw)
		}
	})
}

// FuzzRun: the plugin prints JSON for any configuration.
func FuzzRun(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","socket":"/nowhere"}`, "ADD")
	f.Add(``, "STATUS")
	f.Fuzz(func(t *testing.T, config, command string) {
		if strings.Contains(config, "ocket") && !strings.Contains(config, "/nowhere") {
			t.Skip("the configuration names another socket")
		}
		out, _ := run(strings.NewReader(config), func(k string) string {
			if k == "CNI_COMMAND" {
				return command
			}
			return ""
		})
		if !json.Valid(out) {
			t.Errorf("printed %q", out)
		}
	})
}

// TestImportsLittle: the plugin starts for every pod.
func TestImportsLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, heavy := range []string{"net/http", "crypto/tls"} {
		if slices.Contains(deps, heavy) {
			t.Errorf("imports %s", heavy)
		}
	}
	for _, d := range deps {
		if strings.Contains(strings.SplitN(d, "/", 2)[0], ".") || strings.HasPrefix(d, "bulkhead/pkg") {
			t.Errorf("imports %s", d)
		}
	}
}
