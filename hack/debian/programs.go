// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"bulkhead/hack/oci"
)

// libraryDirs are the directories that Debian's dynamic loader searches.
var libraryDirs = map[elf.Machine][]string{
	elf.EM_X86_64:  {"/usr/lib/x86_64-linux-gnu", "/usr/lib"},
	elf.EM_AARCH64: {"/usr/lib/aarch64-linux-gnu", "/usr/lib"},
}

// Programs returns programs of the tree as files of an image: the programs,
// their loader and shared libraries, and for each package that owns one of
// these its license and, where image scanners expect it, its control file.
func (t Tree) Programs(programs ...string) ([]oci.File, error) {
	files := map[string]oci.File{}
	for _, p := range programs {
		if err := closure(t.Root, p, files); err != nil {
			return nil, fmt.Errorf("find %s and its libraries: %w", p, err)
		}
	}
	owned := map[string]bool{}
	for _, f := range files {
		owned[strings.TrimPrefix(f.Source, t.Root)] = true
	}
	lists, err := filepath.Glob(filepath.Join(t.control, "*.list"))
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			return nil, fmt.Errorf("read the files of a package: %w", err)
		}
		owner := false
		for line := range strings.Lines(string(data)) {
			p := strings.TrimSpace(line)
			owner = owner || owned[p]
			delete(owned, p)
		}
		if !owner {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(list), ".list")
		license := path.Join("/usr/share/doc", name, "copyright")
		source, err := Resolve(t.Root, license)
		if err != nil {
			return nil, fmt.Errorf("find the license of %s: %w", name, err)
		}
		files[license] = oci.File{Path: license, Source: source, Mode: 0o644}
		status := "/var/lib/dpkg/status.d/" + name
		files[status] = oci.File{Path: status, Source: filepath.Join(t.control, name+".control"), Mode: 0o644}
	}
	for p := range owned {
		return nil, fmt.Errorf("no package of the tree contains %s", p)
	}
	sorted := make([]oci.File, 0, len(files))
	for _, f := range files {
		sorted = append(sorted, f)
	}
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	return sorted, nil
}

// closure adds an ELF file, its loader and the libraries it needs to files.
func closure(root, name string, files map[string]oci.File) error {
	if _, done := files[name]; done {
		return nil
	}
	source, err := Resolve(root, name)
	if err != nil {
		return err
	}
	files[name] = oci.File{Path: name, Source: source}
	object, err := elf.Open(source)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer object.Close()
	for _, p := range object.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz)
		if _, err := p.ReadAt(loader, 0); err != nil {
			return fmt.Errorf("read the loader of %s: %w", name, err)
		}
		if err := closure(root, strings.TrimRight(string(loader), "\x00"), files); err != nil {
			return err
		}
	}
	needed, err := object.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("read the libraries of %s: %w", name, err)
	}
	for _, library := range needed {
		found := ""
		for _, dir := range libraryDirs[object.Machine] {
			if _, err := Resolve(root, path.Join(dir, library)); err == nil {
				found = path.Join(dir, library)
				break
			}
		}
		if found == "" {
			return fmt.Errorf("%s needs %s, which is not in the root file system", name, library)
		}
		if err := closure(root, found, files); err != nil {
			return err
		}
	}
	return nil
}

// Resolve returns the path of a file below root, and follows symbolic links
// as a process does whose root directory is root.
func Resolve(root, name string) (string, error) {
	rest, at := strings.Split(path.Clean("/"+name), "/")[1:], "/"
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		info, err := os.Lstat(filepath.Join(root, next))
		if err != nil {
			return "", err
		}
		rest = rest[1:]
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > 40 {
			return "", errors.New("too many symbolic links at " + next)
		}
		target, err := os.Readlink(filepath.Join(root, next))
		if err != nil {
			return "", err
		}
		if !path.IsAbs(target) {
			target = path.Join(at, target)
		}
		rest, at = append(strings.Split(path.Clean(target), "/")[1:], rest...), "/"
	}
	return filepath.Join(root, at), nil
}
