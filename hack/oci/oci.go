// SPDX-License-Identifier: Apache-2.0

// Package oci writes container images as OCI archives, without a registry, a
// container engine or a build language. The same files and configuration give
// the same bytes.
package oci

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is a file of an image at the absolute path Path: the content of the file
// Source, or Data, or a symbolic link to Link.
type File struct {
	Path   string
	Source string
	Data   []byte
	Link   string
	// Mode is the permission bits; 0 means 0755.
	Mode int64
}

// Image is an image for one architecture of Linux.
type Image struct {
	Arch   string // as in GOARCH
	Layers [][]File
	Config v1.Config
}

// Annotations of an archive's index. ctr and podman load the image as Name, and
// skopeo finds it by Ref.
const (
	annotationName = "io.containerd.image.name"
	annotationRef  = "org.opencontainers.image.ref.name"
)

// WriteArchive writes an image, for one or more architectures, to an OCI archive
// and returns the digest of its index. Name is the full reference that the image
// is loaded as, such as docker.io/lab/busybox:1.
func WriteArchive(file, name string, images ...Image) (v1.Hash, error) {
	digest, err := writeArchive(file, name, images)
	if err != nil {
		return digest, fmt.Errorf("write the image %s to %s: %w", name, file, err)
	}
	return digest, nil
}

func writeArchive(file, name string, images []Image) (v1.Hash, error) {
	_, tag, ok := strings.Cut(path.Base(name), ":")
	if !ok {
		return v1.Hash{}, errors.New("the image's name has no tag")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		built, err := i.build()
		if err != nil {
			return v1.Hash{}, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: built, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: i.Arch}},
		})
	}
	digest, err := index.Digest()
	if err != nil {
		return v1.Hash{}, fmt.Errorf("compute the digest: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), ".oci-")
	if err != nil {
		return v1.Hash{}, fmt.Errorf("create a temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	// The image's index is the only entry of the archive's index: podman and
	// skopeo refuse to choose among several.
	content, archive := filepath.Join(dir, "layout"), filepath.Join(dir, "archive")
	to, err := layout.Write(content, empty.Index)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("write the layout: %w", err)
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{annotationName: name, annotationRef: tag})); err != nil {
		return v1.Hash{}, fmt.Errorf("write the layout: %w", err)
	}
	if err := pack(content, archive); err != nil {
		return v1.Hash{}, err
	}
	return digest, os.Rename(archive, file)
}

// pack writes the files of dir to an archive, in order of their names and
// without their times and owners.
func pack(dir, archive string) error {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	out := tar.NewWriter(f)
	if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			return out.WriteHeader(&tar.Header{Name: name + "/", Mode: 0o755, Typeflag: tar.TypeDir})
		}
		return writeFile(out, File{Path: "/" + name, Source: filepath.Join(dir, name), Mode: 0o644})
	}); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return f.Close()
}

// epoch is the creation time of every image: the real one would change the digest.
var epoch = v1.Time{Time: time.Unix(0, 0).UTC()}

func (i Image) build() (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.ConfigFile(image, &v1.ConfigFile{
		Created: epoch, Architecture: i.Arch, OS: "linux", Config: i.Config, RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, fmt.Errorf("configure the image for %s: %w", i.Arch, err)
	}
	for n, files := range i.Layers {
		l, err := newLayer(files, n == 0)
		if err != nil {
			return nil, fmt.Errorf("build layer %d for %s: %w", n, i.Arch, err)
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: l, History: v1.History{Created: epoch}}); err != nil {
			return nil, fmt.Errorf("append layer %d for %s: %w", n, i.Arch, err)
		}
	}
	return image, nil
}

func newLayer(files []File, first bool) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeLayer(w, files, first)) }()
		return r, nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithCompressedCaching)
}

// mountPoints are directories that every container needs.
var mountPoints = []string{"/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var"}

// writeLayer writes the files in order of their paths, and each directory once,
// before its files.
func writeLayer(w io.Writer, files []File, first bool) error {
	files = append([]File(nil), files...)
	sort.SliceStable(files, func(a, b int) bool { return files[a].Path < files[b].Path })
	out, written := tar.NewWriter(w), map[string]bool{"/": true}
	if first {
		for _, d := range mountPoints {
			if err := writeDir(out, d, written); err != nil {
				return err
			}
		}
	}
	for n, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
			return fmt.Errorf("%q is not a clean absolute path", f.Path)
		}
		if n > 0 && files[n-1].Path == f.Path {
			return fmt.Errorf("two files have the path %s", f.Path)
		}
		if err := writeDir(out, path.Dir(f.Path), written); err != nil {
			return err
		}
		if err := writeFile(out, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return out.Close()
}

func writeDir(out *tar.Writer, dir string, written map[string]bool) error {
	if written[dir] {
		return nil
	}
	if err := writeDir(out, path.Dir(dir), written); err != nil {
		return err
	}
	written[dir] = true
	mode := int64(0o755)
	if dir == "/tmp" {
		mode = 0o1777
	}
	return out.WriteHeader(&tar.Header{Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode, Typeflag: tar.TypeDir})
}

func writeFile(out *tar.Writer, f File) error {
	h := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: f.Mode, Typeflag: tar.TypeReg}
	if h.Mode == 0 {
		h.Mode = 0o755
	}
	if f.Link != "" {
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		return out.WriteHeader(h)
	}
	if f.Source == "" {
		h.Size = int64(len(f.Data))
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		_, err := out.Write(f.Data)
		return err
	}
	in, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Source)
	}
	h.Size = info.Size()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}
