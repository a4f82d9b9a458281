package build

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
)

// MirrorVariable overrides the mirror that apt's configuration names.
const MirrorVariable = "BULKHEAD_LAB_MIRROR"

// mirror returns the Debian mirror that this machine's own apt uses.
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
		if m := mirrorIn(path, string(data)); m != "" {
			return m, nil
		}
	}
	return "", fmt.Errorf("no Debian mirror in apt's sources; name one in %s", MirrorVariable)
}

// mirrorIn returns the first Debian archive of one apt source file, by the
// file's name in either of apt's two formats.
func mirrorIn(path, content string) string {
	var sources []source
	switch filepath.Ext(path) {
	case ".list":
		sources = parseList(content)
	case ".sources":
		sources = parseDeb822(content)
	}
	for _, s := range sources {
		if s.isDebian() {
			return s.uri
		}
	}
	return ""
}

type source struct {
	uri                string
	suites, components []string
}

// isDebian tells the archive proper from its security and third-party
// neighbours: they too have suites, but not at a path that ends in /debian.
func (s source) isDebian() bool {
	if !strings.HasSuffix(strings.TrimRight(s.uri, "/"), "/debian") || !strings.Contains(s.uri, "://") {
		return false
	}
	for _, c := range s.components {
		if c == "main" {
			return true
		}
	}
	return false
}

// parseList reads lines such as: deb [signed-by=…] URI SUITE COMPONENT…
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

// parseDeb822 reads paragraphs of fields; a line that begins with a space goes
// on with the field above it.
func parseDeb822(content string) []source {
	var all []source
	fields := map[string]string{}
	finish := func() {
		enabled := !strings.EqualFold(strings.TrimSpace(fields["enabled"]), "no")
		if types := strings.Fields(fields["types"]); enabled && contains(types, "deb") {
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

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// aptOptions passes on how this machine's apt reaches the network: proxies,
// certificates, time limits.
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
