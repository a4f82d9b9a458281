// SPDX-License-Identifier: Apache-2.0

package image

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/hack/debian"
	"bulkhead/hack/oci"
	"bulkhead/hack/oci/ocitest"
)

// fakeImages assembles the image for every architecture from small files.
func fakeImages(t *testing.T) []oci.Image {
	t.Helper()
	// An ELF file without program headers needs no loader and no libraries.
	elf := make([]byte, 64)
	copy(elf, "\x7fELF\x02\x01\x01")
	elf[16], elf[18], elf[20], elf[52], elf[54] = 2, 0x3e, 1, 64, 56
	var images []oci.Image
	for _, arch := range Architectures {
		dir := t.TempDir()
		write := func(name string, data []byte) {
			t.Helper()
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for name := range programs {
			write("bin/"+name, []byte(name+" for "+arch))
		}
		for _, tool := range tools {
			write("tree/root"+tool, elf)
		}
		write("tree/root/etc/os-release", []byte("ID=debian\n"))
		write("tree/root/usr/share/common-licenses/GPL-2", []byte("GNU GENERAL PUBLIC LICENSE\n"))
		write("tree/root/usr/share/doc/tools/copyright", []byte("GPL-2.0\n"))
		write("tree/control/tools.control", []byte("Package: tools\n"))
		write("tree/control/tools.list", []byte(strings.Join(tools, "\n")+"\n"))
		i, err := assemble(debian.TreeIn(filepath.Join(dir, "tree")), filepath.Join(dir, "bin"), arch, "v1.2.3")
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, i)
	}
	return images
}

func TestImage(t *testing.T) {
	var digests []string
	var archive string
	for range 2 {
		archive = filepath.Join(t.TempDir(), "bulkhead.tar")
		digest, err := oci.WriteArchive(archive, Name, fakeImages(t)...)
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest.String())
	}
	if digests[0] != digests[1] {
		t.Errorf("the same programs have the digests %v", digests)
	}
	index, _ := ocitest.Open(t, archive)
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != len(Architectures) {
		t.Fatalf("%d images, want one for each of %v", len(manifest.Manifests), Architectures)
	}
	for n, arch := range Architectures {
		if got := manifest.Manifests[n].Platform.String(); got != "linux/"+arch {
			t.Errorf("platform %s, want linux/%s", got, arch)
		}
		i, err := index.Image(manifest.Manifests[n].Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := i.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.OS != "linux" {
			t.Errorf("the config is for %s/%s, want linux/%s", config.OS, config.Architecture, arch)
		}
		if labels := config.Config.Labels; labels["org.opencontainers.image.version"] != "v1.2.3" || labels["org.opencontainers.image.licenses"] == "" {
			t.Errorf("%s: labels %v", arch, labels)
		}
		files := ocitest.Files(t, i)
		for name, path := range programs {
			if f := files[path]; f.Content != name+" for "+arch || f.Mode != 0o755 || f.Uid != 0 {
				t.Errorf("%s: %s is %q, mode %o, owner %d", arch, path, f.Content, f.Mode, f.Uid)
			}
		}
		for name, mode := range map[string]int64{
			"/usr/bin/ovs-ofctl": 0o755, "/usr/sbin/nft": 0o755, "/etc/passwd": 0o644, "/etc/os-release": 0o644,
			"/usr/share/doc/tools/copyright": 0o644, "/var/lib/dpkg/status.d/tools": 0o644,
			"/usr/share/common-licenses/GPL-2": 0o644,
		} {
			if f, ok := files[name]; !ok || f.Mode != mode {
				t.Errorf("%s: %s is in the image: %v, mode %o, want %o", arch, name, ok, f.Mode, mode)
			}
		}
		// The product finds its tools by PATH.
		var dirs []string
		for _, e := range config.Config.Env {
			if list, ok := strings.CutPrefix(e, "PATH="); ok {
				dirs = filepath.SplitList(list)
			}
		}
		for _, tool := range []string{"nft", "ovn-trace", "ovs-appctl", "ovs-ofctl", "ovs-vsctl"} {
			found := false
			for _, dir := range dirs {
				_, ok := files[path.Join(dir, tool)]
				found = found || ok
			}
			if !found {
				t.Errorf("%s: %s is not in %v", arch, tool, dirs)
			}
		}
	}
}
