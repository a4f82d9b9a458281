// Package image puts container images together from files, without a registry,
// a container engine or a build language: one layer, a config and a manifest,
// as a docker-archive that `ctr images import` and `docker load` take.
// The same files make the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"sort"
	"strings"
)

// File is one file of an image: the content of Source, or Data, or a symbolic
// link to Link, at the absolute path Path.
type File struct {
	Path   string
	Source string
	Data   []byte
	Link   string
	// Mode is the permission bits; 0 means 0755.
	Mode int64
}

// Image is what goes into one archive.
type Image struct {
	// Name is the reference it is loaded as, such as docker.io/lab/busybox:1.
	Name       string
	Files      []File
	Entrypoint []string
	Cmd        []string
	Env        []string
}

// Write writes the image as a docker-archive.
func (i Image) Write(w io.Writer) error {
	if i.Name == "" {
		return errors.New("an image needs a name")
	}
	// The layer's digest stands in the config, ahead of it in the archive.
	layer, err := os.CreateTemp("", "layer-*.tar")
	if err != nil {
		return fmt.Errorf("make a temporary layer: %w", err)
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	hash := sha256.New()
	if err := i.writeLayer(io.MultiWriter(layer, hash)); err != nil {
		return fmt.Errorf("layer of %s: %w", i.Name, err)
	}
	size, err := layer.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of the layer of %s: %w", i.Name, err)
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind the layer of %s: %w", i.Name, err)
	}
	digest := hex.EncodeToString(hash.Sum(nil))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": "1970-01-01T00:00:00Z",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
	})
	if err != nil {
		return fmt.Errorf("config of %s: %w", i.Name, err)
	}
	sum := sha256.Sum256(config)
	configName, layerName := hex.EncodeToString(sum[:])+".json", digest+"/layer.tar"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": []string{i.Name}, "Layers": []string{layerName}}})
	if err != nil {
		return fmt.Errorf("manifest of %s: %w", i.Name, err)
	}
	out := tar.NewWriter(w)
	for _, part := range []struct {
		name string
		size int64
		data io.Reader
	}{
		{"manifest.json", int64(len(manifest)), bytes.NewReader(manifest)},
		{configName, int64(len(config)), bytes.NewReader(config)},
		{layerName, size, layer},
	} {
		if err := out.WriteHeader(&tar.Header{Name: part.name, Size: part.size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			return fmt.Errorf("write %s: %w", part.name, err)
		}
		if _, err := io.Copy(out, part.data); err != nil {
			return fmt.Errorf("write %s: %w", part.name, err)
		}
	}
	return out.Close()
}

// writeLayer writes the files in order of their paths, each directory once and
// ahead of what is in it.
func (i Image) writeLayer(w io.Writer) error {
	files := append([]File(nil), i.Files...)
	sort.SliceStable(files, func(a, b int) bool { return files[a].Path < files[b].Path })
	out, made := tar.NewWriter(w), map[string]bool{"/": true}
	// Every image has the places that a container needs.
	for _, d := range []string{"/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var"} {
		if err := writeDir(out, d, made); err != nil {
			return err
		}
	}
	for n, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
			return fmt.Errorf("%q is no clean absolute path", f.Path)
		}
		if n > 0 && files[n-1].Path == f.Path {
			return fmt.Errorf("%s is there twice", f.Path)
		}
		if err := writeDir(out, path.Dir(f.Path), made); err != nil {
			return err
		}
		if err := writeFile(out, f); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return out.Close()
}

func writeDir(out *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := writeDir(out, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
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
		return fmt.Errorf("%s is no regular file", f.Source)
	}
	h.Size = info.Size()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}
