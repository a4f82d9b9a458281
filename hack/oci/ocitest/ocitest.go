// SPDX-License-Identifier: Apache-2.0

// Package ocitest reads OCI archives in tests.
package ocitest

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// File is a file, directory or link in a tar archive.
type File struct {
	tar.Header
	Content string
}

// Files returns the files of an image with all its layers applied, by absolute path.
func Files(t *testing.T, image v1.Image) map[string]File {
	t.Helper()
	flat := mutate.Extract(image)
	defer flat.Close()
	files := map[string]File{}
	for _, f := range read(t, flat) {
		files[filepath.Join("/", f.Name)] = f
	}
	return files
}

// Open validates an OCI archive, which must hold one image index, and returns
// the index and the annotations that name it.
func Open(t *testing.T, archive string) (v1.ImageIndex, map[string]string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	for _, f := range read(t, f) {
		to := filepath.Join(dir, f.Name)
		if f.Typeflag == tar.TypeDir {
			err = os.Mkdir(to, 0o755)
		} else {
			err = os.WriteFile(to, []byte(f.Content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	top, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("the archive's index has %d entries, want 1: podman and skopeo cannot choose", len(manifest.Manifests))
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index, manifest.Manifests[0].Annotations
}

func read(t *testing.T, r io.Reader) []File {
	t.Helper()
	var files []File
	for r := tar.NewReader(r); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{*h, string(body)})
	}
}
