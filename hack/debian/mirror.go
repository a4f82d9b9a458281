// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// MirrorVariable overrides the mirror from this machine's apt configuration.
const MirrorVariable = "BULKHEAD_DEBIAN_MIRROR"

// mirror returns the Debian mirror that this machine's apt uses.
func mirror() (string, error) {
	if m := os.Getenv(MirrorVariable); m != "" {
		return m, nil
	}
	files, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	sort.Strings(files)
	for _, path := range append([]string{"/etc/apt/sources.list"}, files...) {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if m := mirrorIn(path, string(data), os.ReadFile); m != "" {
			return m, nil
		}
	}
	return "", fmt.Errorf("found no Debian mirror in apt's sources; set %s to one", MirrorVariable)
}

// mirrorIn returns the first Debian archive in an apt source file. The suffix of
// path tells which of apt's two formats the file has. read reads lists of mirrors.
func mirrorIn(path, content string, read func(path string) ([]byte, error)) string {
	var sources []source
	switch filepath.Ext(path) {
	case ".list":
		sources = parseList(content)
	case ".sources":
		sources = parseDeb822(content)
	}
	for _, s := range sources {
		if list, ok := strings.CutPrefix(s.uri, "mirror+file:"); ok {
			s.uri = firstMirror(list, read)
		}
		if s.isDebian() {
			return s.uri
		}
	}
	return ""
}

// firstMirror returns the first URI of a list of mirrors (apt-transport-mirror(1)), which
// the sources of Debian's cloud images name; "" if it has none.
func firstMirror(path string, read func(path string) ([]byte, error)) string {
	data, err := read("/" + strings.TrimLeft(path, "/"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 0 {
			return f[0]
		}
	}
	return ""
}

type source struct {
	uri                string
	suites, components []string
}

// isDebian reports whether s is Debian's main archive. Security and third-party
// archives have suites too, but their paths do not end in /debian.
func (s source) isDebian() bool {
	if !strings.HasSuffix(strings.TrimRight(s.uri, "/"), "/debian") || !strings.Contains(s.uri, "://") {
		return false
	}
	return slices.Contains(s.components, "main")
}

// parseList parses lines such as: deb [signed-by=…] URI SUITE COMPONENT…
func parseList(content string) []source {
	var all []source
	for line := range strings.Lines(content) {
		line, _, _ = strings.Cut(line, "#")
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind != "deb" {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if f := strings.Fields(rest); len(f) >= 3 {
			all = append(all, source{uri: f[0], suites: f[1:2], components: f[2:]})
		}
	}
	return all
}

// parseDeb822 parses paragraphs of fields. A line that begins with a space
// continues the field above.
func parseDeb822(content string) []source {
	var all []source
	fields := map[string]string{}
	finish := func() {
		enabled := !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no")
		if types := strings.Fields(fields["types"]); enabled && slices.Contains(types, "deb") {
			for _, uri := range strings.Fields(fields["uris"]) {
				all = append(all, source{uri: uri, suites: strings.Fields(fields["suites"]), components: strings.Fields(fields["components"])})
			}
		}
		fields = map[string]string{}
	}
	last := ""
	scan := bufio.NewScanner(strings.NewReader(content))
	for scan.Scan() {
		line := scan.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			finish()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += " " + line
		default:
			name, value, _ := strings.Cut(line, ":")
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = value
		}
	}
	finish()
	return all
}

// aptOptions returns this machine's apt options for network access: proxies,
// certificates, timeouts.
func aptOptions() []string {
	out, err := exec.Command("apt-config", "dump").Output()
	if err != nil {
		return nil
	}
	var options []string
	for line := range strings.Lines(string(out)) {
		for _, prefix := range []string{"Acquire::http::", "Acquire::https::", "Acquire::Retries", "Acquire::ForceIPv"} {
			if strings.HasPrefix(line, prefix) && !strings.Contains(line, `""`) {
				options = append(options, strings.TrimSuffix(strings.TrimSpace(line), ";"))
			}
		}
	}
	return options
}
