// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"os"
	"testing"
)

func TestMirrorIn(t *testing.T) {
	const want = "http://mirror.example/debian"
	lists := map[string]string{
		"/etc/apt/mirrors/debian.list":          "# two\n" + want + "\tpriority:1\nhttp://other.example/debian\n",
		"/etc/apt/mirrors/debian-security.list": "http://security.example/debian-security\n",
	}
	read := func(path string) ([]byte, error) {
		if content, ok := lists[path]; ok {
			return []byte(content), nil
		}
		return nil, os.ErrNotExist
	}
	for name, c := range map[string]struct{ path, content, want string }{
		"one line":                          {"sources.list", "# old\ndeb http://security.example/debian-security bookworm-security main\ndeb " + want + " bookworm main contrib\n", want},
		"options":                           {"a.list", "deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] " + want + " bookworm main # why\n", want},
		"source packages and comments only": {"a.list", "deb-src " + want + " bookworm main\n#deb " + want + " bookworm main\n", ""},
		"other vendor":                      {"a.list", "deb https://packages.example/repos/code stable main\n", ""},
		"deb822": {"debian.sources", "Types: deb\nURIs: http://security.example/debian-security\nSuites: bookworm-security\nComponents: main\n\n" +
			"Types: deb deb-src\n# comment\nURIs: " + want + "/\nSuites: bookworm bookworm-updates\nComponents: main\n", want + "/"},
		"deb822 continued": {"debian.sources", "Types: deb\nURIs:\n " + want + "\nSuites: bookworm\nComponents:\n contrib\n main\n", want},
		"deb822 disabled":  {"debian.sources", "Enabled: no\nTypes: deb\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
		"deb822 sources":   {"debian.sources", "Types: deb-src\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
		"lists of mirrors, as in Debian's cloud images": {"debian.sources", "Types: deb deb-src\nURIs: mirror+file:///etc/apt/mirrors/debian-security.list\nSuites: trixie-security\nComponents: main\n\n" +
			"Types: deb deb-src\nURIs: mirror+file:///etc/apt/mirrors/debian.list\nSuites: trixie trixie-updates\nComponents: main\n", want},
		"list of mirrors that does not exist": {"debian.sources", "Types: deb\nURIs: mirror+file:/etc/apt/none\nSuites: trixie\nComponents: main\n", ""},
		"not a source file":                   {"debian.sources.disabled", "Types: deb\nURIs: " + want + "\nSuites: bookworm\nComponents: main\n", ""},
	} {
		if got := mirrorIn(c.path, c.content, read); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
