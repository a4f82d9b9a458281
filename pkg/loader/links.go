// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// Attachments lists what is there: after a restart, this is what is ours. A
// pinned link that cannot be read, or runs another program than the one in use,
// is missing: attaching again puts that right.
func (l *Loader) Attachments() ([]Attachment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirs, err := l.linkDirs()
	if err != nil {
		return nil, err
	}
	ids, err := l.ProgramIDs()
	if err != nil {
		return nil, err
	}
	var out []Attachment
	for _, d := range dirs {
		if strings.HasPrefix(d, doorPrefix) {
			a, err := l.doorAttachment(d, ids)
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
			have, err := readLink(l.pin("links", d, name))
			if err != nil || have.program != ids[name] || have.cgroup == 0 && !l.isLSM(name) {
				a.Missing = append(a.Missing, name)
				continue
			}
			a.CgroupID = max(a.CgroupID, have.cgroup)
			a.Programs = append(a.Programs, name)
		}
		out = append(out, a)
	}
	if !l.tcx {
		filters, err := l.filterAttachments(ids)
		if err != nil {
			return nil, err
		}
		out = append(out, filters...)
	}
	return out, nil
}

// linkDirs are the directories of links that this version knows.
func (l *Loader) linkDirs() ([]string, error) {
	entries, err := os.ReadDir(l.pin("links"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && knownDir(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func knownDir(name string) bool {
	if uid, ok := strings.CutPrefix(name, podPrefix); ok {
		return uidRE.MatchString(uid)
	}
	if index, ok := strings.CutPrefix(name, doorPrefix); ok {
		n, err := strconv.Atoi(index)
		return err == nil && n > 0
	}
	return name == rootDir
}

// linkState is what a pinned link does.
type linkState struct {
	program ebpf.ProgramID
	cgroup  uint64 // it is on; 0: none, or one that is gone
	ifindex int    // it is on; 0: none, or one that is gone
}

func readLink(path string) (linkState, error) {
	lnk, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return linkState{}, fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer lnk.Close()
	info, err := lnk.Info()
	if err != nil {
		return linkState{}, fmt.Errorf("read pinned link %s: %w", path, err)
	}
	out := linkState{program: info.Program}
	if cg := info.Cgroup(); cg != nil {
		out.cgroup = cg.CgroupId
	}
	if tcx := info.TCX(); tcx != nil {
		out.ifindex = int(tcx.Ifindex)
	}
	return out, nil
}

// takeOver moves every pinned link to the programs in use now. A link already
// there is not touched; what cannot be moved stays as it is, for Attachments to
// show as missing. So does a link whose new program begins without the rows that
// the old one judges by: what is attached goes on until they are written.
func (l *Loader) takeOver() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirs, err := l.linkDirs()
	if err != nil {
		return err
	}
	for _, d := range dirs {
		entries, err := os.ReadDir(l.pin("links", d))
		if err != nil {
			return fmt.Errorf("list pinned links of %s: %w", d, err)
		}
		for _, e := range entries {
			path := l.pin("links", d, e.Name())
			name := strings.TrimSuffix(e.Name(), newSuffix)
			switch {
			case l.programs[name] == nil:
				// Not loadable here any more, or of a later version: what it does
				// today is better than nothing until Settle.
				l.log.Warn("pinned link has no program in this version; left as it is", "pin", path)
			case l.isLSM(name):
				// Such a link cannot be updated; AttachRoot puts another in its place.
			case l.unready[name]:
				l.log.Info("pinned link goes on with its former program until the rows of the new one are written", "pin", path)
			default:
				if err := l.updateLink(path, name); err != nil && !errors.Is(err, unix.ENOLINK) {
					l.log.Warn("pinned link cannot be moved to the program in use; another takes its place when it is attached again", "pin", path, "err", err)
				}
			}
		}
	}
	return nil
}

func (l *Loader) isLSM(name string) bool { return l.attachTypes[name] == ebpf.AttachLSMMac }

// updateLink makes a pinned link run the program in use.
func (l *Loader) updateLink(path, name string) error {
	prog := l.programs[name]
	lnk, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return fmt.Errorf("open pinned link %s: %w", path, err)
	}
	defer lnk.Close()
	info, err := lnk.Info()
	if err != nil {
		return fmt.Errorf("read pinned link %s: %w", path, err)
	}
	if cg, tcx := info.Cgroup(), info.TCX(); (cg == nil || cg.CgroupId == 0) && (tcx == nil || tcx.Ifindex == 0) {
		return fmt.Errorf("update link %s: %w", path, unix.ENOLINK)
	}
	pi, err := prog.Info()
	if err != nil {
		return fmt.Errorf("read info of the program for %s: %w", path, err)
	}
	if id, ok := pi.ID(); ok && id == info.Program {
		return nil
	}
	if err := lnk.Update(prog); err != nil {
		return fmt.Errorf("update link %s: %w", path, err)
	}
	return nil
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
	if err := l.makeDir("links", dir); err != nil {
		return err
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
	if l.isLSM(name) { // for the whole node; such a link cannot be updated
		return l.place(path, func(path string) error { return l.runs(path, name) }, func() (link.Link, error) {
			return link.AttachLSM(link.LSMOptions{Program: l.programs[name]})
		})
	}
	return l.place(path, func(path string) error {
		have, err := readLink(path)
		if err == nil && have.cgroup != want {
			err = errElsewhere
		}
		if err != nil {
			return err
		}
		return l.updateLink(path, name)
	}, func() (link.Link, error) {
		return link.AttachRawLink(link.RawLinkOptions{Target: int(cg.Fd()), Program: l.programs[name], Attach: l.attachTypes[name]})
	})
}

var errElsewhere = errors.New("it is attached elsewhere, or to what is gone")

// runs tells whether a pinned link runs the program in use.
func (l *Loader) runs(path, name string) error {
	have, err := readLink(path)
	if err != nil {
		return err
	}
	pi, err := l.programs[name].Info()
	if err != nil {
		return fmt.Errorf("read info of program %s: %w", name, err)
	}
	if id, ok := pi.ID(); !ok || id != have.program {
		return errors.New("it runs another program")
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
