// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"bulkhead/hack/oci/ocitest"
)

func TestWriteArchive(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "tool")
	if err := os.WriteFile(source, []byte("tool"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := []File{
		{Path: "/bin/tool", Source: source}, {Path: "/bin/sh", Link: "tool"}, {Path: "/etc/passwd", Data: []byte("root"), Mode: 0o644},
	}
	images := func(files ...File) []Image {
		var all []Image
		for _, arch := range []string{"amd64", "arm64"} {
			all = append(all, Image{
				Arch: arch, Layers: [][]File{files, {{Path: "/" + arch, Data: []byte(arch)}}},
				Config: v1.Config{Entrypoint: []string{"/bin/tool"}, Labels: map[string]string{"a": "1", "b": "2"}},
			})
		}
		return all
	}
	write := func(name string, images []Image) (string, []byte) {
		t.Helper()
		file := filepath.Join(dir, name)
		digest, err := WriteArchive(file, "docker.io/lab/x:1", images...)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return digest.String(), data
	}
	digest, first := write("a.tar", images(files[0], files[1], files[2]))
	again, second := write("b.tar", images(files[2], files[1], files[0]))
	if digest != again || !bytes.Equal(first, second) {
		t.Errorf("the same files in another order: digest %s, want %s", again, digest)
	}
	if different, _ := write("c.tar", images(files[:2]...)); different == digest {
		t.Error("other files, the same digest")
	}

	index, annotations := ocitest.Open(t, filepath.Join(dir, "a.tar"))
	if annotations["io.containerd.image.name"] != "docker.io/lab/x:1" || annotations["org.opencontainers.image.ref.name"] != "1" {
		t.Errorf("annotations %v do not name the image", annotations)
	}
	if got, err := index.Digest(); err != nil || got.String() != digest {
		t.Errorf("digest of the archive's index %s, %v, want %s", got, err, digest)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for n, arch := range []string{"amd64", "arm64"} {
		d := manifest.Manifests[n]
		if d.Platform == nil || d.Platform.String() != "linux/"+arch {
			t.Errorf("platform %v, want linux/%s", d.Platform, arch)
		}
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || config.OS != "linux" || len(config.RootFS.DiffIDs) != 2 || config.Config.Entrypoint[0] != "/bin/tool" {
			text, _ := json.Marshal(config)
			t.Errorf("%s: config %s", arch, text)
		}
		files := ocitest.Files(t, image)
		for name, want := range map[string]ocitest.File{
			"/bin/tool":   {Header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o755}, Content: "tool"},
			"/bin/sh":     {Header: tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o755, Linkname: "tool"}},
			"/etc/passwd": {Header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}, Content: "root"},
			"/tmp":        {Header: tar.Header{Typeflag: tar.TypeDir, Mode: 0o1777}},
			"/proc":       {Header: tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}},
			"/" + arch:    {Header: tar.Header{Typeflag: tar.TypeReg, Mode: 0o755}, Content: arch},
		} {
			got, ok := files[name]
			if !ok || got.Typeflag != want.Typeflag || got.Mode != want.Mode || got.Linkname != want.Linkname || got.Content != want.Content ||
				got.Uid != 0 || got.ModTime.Unix() > 0 {
				t.Errorf("%s: %s is %+v, want %+v", arch, name, got, want)
			}
		}
	}
}

func TestWriteArchiveRefuses(t *testing.T) {
	for name, files := range map[string][]File{
		"relative path":  {{Path: "a"}},
		"path upwards":   {{Path: "/a/../b"}},
		"same path":      {{Path: "/a"}, {Path: "/a"}},
		"missing source": {{Path: "/a", Source: "/nonexistent/a"}},
		"directory":      {{Path: "/a", Source: "/"}},
	} {
		dir := t.TempDir()
		if _, err := WriteArchive(filepath.Join(dir, "x.tar"), "x:1", Image{Arch: "amd64", Layers: [][]File{files}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if left, _ := fs.Glob(os.DirFS(dir), "*"); len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	if _, err := WriteArchive(filepath.Join(t.TempDir(), "x.tar"), "example.com:5000/x"); err == nil {
		t.Error("a name without a tag: accepted")
	}
}
