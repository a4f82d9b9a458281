package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// libraryDirs are where the dynamic loader of a Debian root looks.
func libraryDirs() []string {
	multiarch := "x86_64-linux-gnu"
	return []string{"/usr/lib/" + multiarch, "/lib/" + multiarch, "/usr/lib", "/lib", "/lib64", "/usr/lib/" + multiarch + "/openvswitch"}
}

// Program returns a dynamic program of a root file system directory as files
// of an image: itself, its loader and every shared library it needs.
func Program(root, program string) ([]File, error) {
	files := map[string]File{}
	if err := closure(root, program, files); err != nil {
		return nil, fmt.Errorf("%s and its libraries: %w", program, err)
	}
	list := make([]File, 0, len(files))
	for _, f := range files {
		list = append(list, f)
	}
	return list, nil
}

// Merge joins lists of files and drops those that are there already.
func Merge(lists ...[]File) []File {
	var all []File
	seen := map[string]bool{}
	for _, list := range lists {
		for _, f := range list {
			if !seen[f.Path] {
				seen[f.Path] = true
				all = append(all, f)
			}
		}
	}
	return all
}

func closure(root, name string, files map[string]File) error {
	if _, done := files[name]; done {
		return nil
	}
	source, err := Resolve(root, name)
	if err != nil {
		return err
	}
	files[name] = File{Path: name, Source: source}
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
		for _, dir := range libraryDirs() {
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

// Resolve finds a file of a root file system directory and follows symbolic
// links as they would be followed with the directory as the root.
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
