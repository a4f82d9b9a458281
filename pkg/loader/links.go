// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	rootDir    = "root"
	podPrefix  = "pod_"
	doorPrefix = "if_"
)

var uidRE = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`) // also keeps dots out, which bpffs refuses

// Attachment is a set of links on one cgroup or interface, as the kernel tells
// it: of a pod (PodUID), of an interface (Ifindex) or of the root cgroup.
type Attachment struct {
	PodUID   string
	Ifindex  int
	CgroupID uint64   // 0: the cgroup is gone, the links are dead
	Gone     bool     // the interface is gone
	Programs []string // that have a live link there
	Missing  []string // that are loaded, belong there and have none
}

// Root tells that it is of the root cgroup.
func (a Attachment) Root() bool { return a.PodUID == "" && a.Ifindex == 0 }

// AttachPod writes the pod's row and attaches the VRF binding programs to its
// cgroup: the row first, so that the first socket seen finds it. Doing it again
// repairs what is missing and changes nothing else.
func (l *Loader) AttachPod(cgroupPath, podUID string, row PodRow) error {
	if !uidRE.MatchString(podUID) {
		return fmt.Errorf("attach to pod %q: not a usable pod UID", podUID)
	}
	if len(l.hooks(vrfHooks)) == 0 {
		return fmt.Errorf("attach to pod %s: no VRF binding program could be loaded: %s", podUID, l.Missing())
	}
	id, err := CgroupID(cgroupPath)
	if err != nil {
		return fmt.Errorf("attach to pod %s: %w", podUID, err)
	}
	row.CgroupID = id
	if err := l.Put(row); err != nil {
		return err
	}
	return l.attach(podPrefix+podUID, cgroupPath, vrfHooks)
}

// DetachPod removes the pod's links. Its row is deleted apart, after this.
func (l *Loader) DetachPod(podUID string) error {
	if !uidRE.MatchString(podUID) {
		return fmt.Errorf("detach from pod %q: not a usable pod UID", podUID)
	}
	return l.detach(podPrefix + podUID)
}

// AttachRoot attaches what judges the whole node to the root of the cgroup
// tree: the probe allowance, the guard of sockets, and packet sockets.
func (l *Loader) AttachRoot() error {
	if len(l.hooks(rootHooks)) == 0 {
		return fmt.Errorf("attach to the root cgroup: no program for it could be loaded: %s", l.Missing())
	}
	return l.attach(rootDir, l.opts.CgroupRoot, rootHooks)
}

// DetachRoot removes them.
func (l *Loader) DetachRoot() error { return l.detach(rootDir) }

// Attachments lists what is there: after a restart, this is what is ours.
func (l *Loader) Attachments() ([]Attachment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirs, err := l.linkDirs()
	if err != nil {
		return nil, err
	}
	var out []Attachment
	for _, d := range dirs {
		if strings.HasPrefix(d, doorPrefix) {
			a, err := l.doorAttachment(d)
			if err != nil {
				return nil, err
			}
			out = append(out, a)
			continue
		}
		a := Attachment{PodUID: strings.TrimPrefix(d, podPrefix)}
		set := vrfHooks
		if d == rootDir {
			a.PodUID, set = "", rootHooks
		}
		for _, name := range l.hooks(set) {
			if l.attachTypes[name] == ebpf.AttachLSMMac {
				if is, err := l.runsLSM(l.pin("links", d, name), name); err != nil {
					return nil, err
				} else if is {
					a.Programs = append(a.Programs, name)
				} else {
					a.Missing = append(a.Missing, name)
				}
				continue
			}
			id, err := linkCgroup(l.pin("links", d, name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			if id == 0 || err != nil {
				a.Missing = append(a.Missing, name)
				continue
			}
			a.CgroupID = id
			a.Programs = append(a.Programs, name)
		}
		out = append(out, a)
	}
	if !l.tcx {
		filters, err := l.filterAttachments()
		if err != nil {
			return nil, err
		}
		out = append(out, filters...)
	}
	return out, nil
}

func (l *Loader) linkDirs() ([]string, error) {
	entries, err := os.ReadDir(l.pin("links"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && (e.Name() == rootDir || strings.HasPrefix(e.Name(), podPrefix) || strings.HasPrefix(e.Name(), doorPrefix)) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func linkCgroup(path string) (uint64, error) {
	lnk, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return 0, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer lnk.Close()
	info, err := lnk.Info()
	if err != nil {
		return 0, fmt.Errorf("read pinned link %s: %w", path, err)
	}
	cg := info.Cgroup()
	if cg == nil {
		return 0, fmt.Errorf("pinned link %s is no cgroup link", path)
	}
	return cg.CgroupId, nil
}

// takeOver moves every pinned link to the programs in use now. A link already
// there is not touched; a dead one stays for Attachments to show as missing.
func (l *Loader) takeOver() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirs, err := l.linkDirs()
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		entries, err := os.ReadDir(l.pin("links", d))
		if err != nil {
			errs = append(errs, fmt.Errorf("list pinned links of %s: %w", d, err))
			continue
		}
		for _, e := range entries {
			path := l.pin("links", d, e.Name())
			prog := l.programs[e.Name()]
			if prog == nil {
				// Not loadable here any more, or of a later version: what it
				// does today is better than nothing while its maps are ours.
				l.log.Warn("pinned link has no program in this version; left as it is", "link", path)
				continue
			}
			if l.attachTypes[e.Name()] == ebpf.AttachLSMMac {
				continue // such a link cannot be updated; AttachRoot puts another in its place
			}
			if _, err := updateLink(path, prog); err != nil && !errors.Is(err, unix.ENOLINK) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// updateLink makes a pinned link run prog; true when it already did.
func updateLink(path string, prog *ebpf.Program) (bool, error) {
	lnk, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return false, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer lnk.Close()
	info, err := lnk.Info()
	if err != nil {
		return false, fmt.Errorf("read pinned link %s: %w", path, err)
	}
	if cg, tcx := info.Cgroup(), info.TCX(); (cg == nil || cg.CgroupId == 0) && (tcx == nil || tcx.Ifindex == 0) {
		return false, fmt.Errorf("update link %s: %w", path, unix.ENOLINK)
	}
	pi, err := prog.Info()
	if err != nil {
		return false, fmt.Errorf("read info of the program for %s: %w", path, err)
	}
	if id, ok := pi.ID(); ok && id == info.Program {
		return true, nil
	}
	if err := lnk.Update(prog); err != nil {
		return false, fmt.Errorf("update link %s: %w", path, err)
	}
	return false, nil
}

// attach makes every program of the set run on the cgroup: the pinned link
// updated where there is one on this cgroup, otherwise a new one, pinned at once.
func (l *Loader) attach(dir, cgroupPath string, set hookSet) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	want, err := CgroupID(cgroupPath)
	if err != nil {
		return fmt.Errorf("attach %s: %w", dir, err)
	}
	if err := os.MkdirAll(l.pin("links", dir), 0o700); err != nil {
		return fmt.Errorf("create pin directory for %s: %w", dir, err)
	}
	cg, err := os.Open(cgroupPath)
	if err != nil {
		return fmt.Errorf("open cgroup to attach %s: %w", dir, err)
	}
	defer cg.Close()
	var errs []error
	for _, name := range l.hooks(set) {
		if err := l.attachOne(l.pin("links", dir, name), name, want, cg); err != nil {
			errs = append(errs, fmt.Errorf("attach %s to cgroup %s: %w", name, cgroupPath, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Loader) attachOne(path, name string, want uint64, cg *os.File) error {
	prog := l.programs[name]
	if l.attachTypes[name] == ebpf.AttachLSMMac {
		return l.attachLSM(path, name)
	}
	have, err := linkCgroup(path)
	switch {
	case err == nil && have == want:
		_, err := updateLink(path, prog)
		if !errors.Is(err, unix.ENOLINK) {
			return err
		}
		fallthrough // the cgroup went and came back under the same id: dead all the same
	case err == nil:
		if err := unpinLink(path); err != nil {
			return err
		}
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	lnk, err := link.AttachRawLink(link.RawLinkOptions{Target: int(cg.Fd()), Program: prog, Attach: l.attachTypes[name]})
	if err != nil {
		return fmt.Errorf("create link: %w", err)
	}
	defer lnk.Close()
	if err := lnk.Pin(path); err != nil {
		return fmt.Errorf("pin link at %s: %w", path, err)
	}
	return nil
}

// runsLSM tells whether a pinned link runs the program in use now.
func (l *Loader) runsLSM(path, name string) (bool, error) {
	lnk, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer lnk.Close()
	info, err := lnk.Info()
	if err != nil {
		return false, fmt.Errorf("read pinned link %s: %w", path, err)
	}
	pi, err := l.programs[name].Info()
	if err != nil {
		return false, fmt.Errorf("read info of program %s: %w", name, err)
	}
	id, ok := pi.ID()
	return ok && id == info.Program, nil
}

// attachLSM hooks a program into the security modules, for the whole node. A
// link of another program gives way to it only once it is there.
func (l *Loader) attachLSM(path, name string) error {
	if is, err := l.runsLSM(path, name); err != nil || is {
		return err
	}
	lnk, err := link.AttachLSM(link.LSMOptions{Program: l.programs[name]})
	if err != nil {
		return fmt.Errorf("create link: %w", err)
	}
	defer lnk.Close()
	return replacePin(path, lnk.Pin)
}

// unpinLink removes the pin and detaches even when someone else holds the link open.
func unpinLink(path string) error {
	lnk, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_ = lnk.Detach() // fails for a dead link, which is what we want anyway
		lnk.Close()
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove link pin %s: %w", path, err)
	}
	return nil
}

func (l *Loader) detach(dir string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries, err := os.ReadDir(l.pin("links", dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list pinned links of %s: %w", dir, err)
	}
	// What refuses goes first and what marks goes last: reach before isolation.
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	var errs []error
	for _, e := range entries {
		errs = append(errs, unpinLink(filepath.Join(l.pin("links", dir), e.Name())))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(l.pin("links", dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pin directory of %s: %w", dir, err)
	}
	return nil
}
