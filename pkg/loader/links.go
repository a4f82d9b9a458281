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

var uidRE = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`) // also excludes dots, which bpffs rejects

// Attachment is a set of links on one cgroup or interface, as read from the
// kernel: of a pod (PodUID), of an interface (Ifindex) or of the root cgroup.
type Attachment struct {
	PodUID   string
	Ifindex  int
	CgroupID uint64   // 0: the cgroup is gone, the links are dead
	Gone     bool     // the interface is gone
	Programs []string // programs with a live link
	Missing  []string // loaded programs without the link that they should have
}

// Root reports whether the attachment is that of the root cgroup.
func (a Attachment) Root() bool { return a.PodUID == "" && a.Ifindex == 0 }

// AttachPod writes the pod's row and attaches the VRF binding programs to its
// cgroup. It writes the row first, so that the programs find it for the first
// socket. A repeated call repairs missing links and changes nothing else.
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

// DetachPod removes the pod's links. The caller deletes the row afterwards.
func (l *Loader) DetachPod(podUID string) error {
	if !uidRE.MatchString(podUID) {
		return fmt.Errorf("detach from pod %q: not a usable pod UID", podUID)
	}
	return l.detach(podPrefix + podUID)
}

// AttachRoot attaches the programs for the whole node: the probe allowance and the
// guard's socket hooks to the root of the cgroup tree, and the LSM programs for
// packet sockets.
func (l *Loader) AttachRoot() error {
	if len(l.hooks(rootHooks)) == 0 {
		return fmt.Errorf("attach to the root cgroup: no program for it could be loaded: %s", l.Missing())
	}
	return l.attach(rootDir, l.opts.CgroupRoot, rootHooks)
}

// AttachPacketChecks attaches those programs of AttachRoot that check what sockets send and receive. They
// refuse no socket, so pods without a row can still do what the node may need to reach its API server.
func (l *Loader) AttachPacketChecks() error {
	if len(l.hooks(packetHooks)) == 0 {
		return fmt.Errorf("attach to the root cgroup: no program that checks packets could be loaded: %s", l.Missing())
	}
	return l.attach(rootDir, l.opts.CgroupRoot, packetHooks)
}

// DetachRoot removes the links of AttachRoot.
func (l *Loader) DetachRoot() error { return l.detach(rootDir) }

// Attachments lists the attachments, also those of a former agent. A pinned link
// that cannot be read, or that runs another program than the loaded one, counts
// as missing: attaching again repairs it. There may be hundreds: between two of them, other calls attach and detach.
func (l *Loader) Attachments() ([]Attachment, error) {
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
		a, err := l.attachment(d, ids)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	if !l.tcx {
		l.mu.Lock()
		defer l.mu.Unlock()
		filters, err := l.filterAttachments(ids)
		if err != nil {
			return nil, err
		}
		out = append(out, filters...)
	}
	return out, nil
}

// attachment reads the links in a directory.
func (l *Loader) attachment(dir string, ids map[string]ebpf.ProgramID) (Attachment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.HasPrefix(dir, doorPrefix) {
		return l.doorAttachment(dir, ids)
	}
	a := Attachment{PodUID: strings.TrimPrefix(dir, podPrefix)}
	set := vrfHooks
	if dir == rootDir {
		a.PodUID, set = "", rootHooks
	}
	for _, name := range l.hooks(set) {
		have, err := readLink(l.pin("links", dir, name))
		if err != nil || have.program != ids[name] || have.cgroup == 0 && !l.isLSM(name) {
			a.Missing = append(a.Missing, name)
			continue
		}
		a.CgroupID = max(a.CgroupID, have.cgroup)
		a.Programs = append(a.Programs, name)
	}
	return a, nil
}

// linkDirs lists the directories of links that this version knows.
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

// linkState describes a pinned link.
type linkState struct {
	program ebpf.ProgramID
	cgroup  uint64 // id of the cgroup; 0: none, or the cgroup is gone
	ifindex int    // index of the interface; 0: none, or the interface is gone
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

// updateLinks updates every pinned link to the loaded program. A link that cannot
// be updated stays as it is, and Attachments shows it as missing. A link also stays
// as it is if the new program's maps lack rows: the old program stays attached
// until they are written.
func (l *Loader) updateLinks() error {
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
				// The program cannot be loaded here any more, or is of a later
				// version: until FinishTakeover, an old program is better than none.
				l.log.Warn("no program is loaded for the pinned link; leaving the link as it is", "pin", path)
			case l.isLSM(name):
				// The kernel cannot update an LSM link; AttachRoot replaces it.
			case l.unready[name]:
				l.log.Info("pinned link keeps its old program until the rows of the new one are written", "pin", path)
			default:
				if err := l.updateLink(path, name); err != nil && !errors.Is(err, unix.ENOLINK) {
					l.log.Warn("cannot update the pinned link; the next attachment replaces it", "pin", path, "error", err)
				}
			}
		}
	}
	return nil
}

func (l *Loader) isLSM(name string) bool { return l.attachTypes[name] == ebpf.AttachLSMMac }

// updateLink makes a pinned link run the loaded program; it is a no-op if the link does.
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

// attach makes every program of the set run on the cgroup. It updates a pinned link
// that is on this cgroup, and otherwise creates and pins a new one.
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
	if l.isLSM(name) { // attached to the whole node, and the kernel cannot update the link
		return l.ensureLink(path, func(path string) error { return l.checkProgram(path, name) }, func() (link.Link, error) {
			return link.AttachLSM(link.LSMOptions{Program: l.programs[name]})
		})
	}
	return l.ensureLink(path, func(path string) error {
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

var errElsewhere = errors.New("the link is on another cgroup or interface, or on one that is gone")

// checkProgram returns an error unless the pinned link runs the loaded program.
func (l *Loader) checkProgram(path, name string) error {
	have, err := readLink(path)
	if err != nil {
		return err
	}
	pi, err := l.programs[name].Info()
	if err != nil {
		return fmt.Errorf("read info of program %s: %w", name, err)
	}
	if id, ok := pi.ID(); !ok || id != have.program {
		return errors.New("the link runs another program")
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
	// Detach in order of name: the setsockopt program comes last, so that no socket
	// can choose another mark or device before.
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
