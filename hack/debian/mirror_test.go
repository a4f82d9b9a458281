// SPDX-License-Identifier: Apache-2.0

package debian

import "testing"

func TestMirrorIn(t *testing.T) {
	const want = "http://mirror.example/debian"
	for name, c := range map[string]struct{ path, content, want string }{
		"one line":                          {"sources.list", "# old\ndeb http://security.example/debian-security bookworm-security main\ndeb " + want + " bookworm main contrib\n", want},
		"options":                           {"a.list", "deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] " + want + " bookworm main # why\n", want},
		"source packages and comments only": {"a.list", "deb-src " + want + " bookworm main\n#deb " + want + " bookworm main\n", ""},
		"other vendor":                      {"a.list", "deb https://packages.example/repos/code stable main\n", ""},
		"deb822": {"debian.sources", "Types: deb\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n" +
			"Types: deb deb-src\n# comment\nURIs: " + want + "/\nSuites: bookworm bookworm-updates\nComponents: main\n", want + "/"},
		"deb822 continued":  {"debian.sources", "Types: deb\nURIs:\n " + want + "\nSuites: bookworm\nComponents:\n contrib\n main\n", want},
		"deb822 disabled":   {"debian.sources", "Enabled: no\nTypes: deb\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
		"deb822 sources":    {"debian.sources", "Types: deb-src\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
		"not a source file": {"debian.sources.disabled", "Types: deb\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
	} {
		if got := mirrorIn(c.path, c.content); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
