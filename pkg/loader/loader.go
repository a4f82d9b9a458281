// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"bulkhead/pkg/network"
)

const (
	// DefaultPinRoot is where programs, maps and links are pinned.
	DefaultPinRoot = "/sys/fs/bpf/bulkhead"
	// KubeletMark is the mark that kubelet's sockets are created with. nftables
	// matches it for packets that the probe programs cannot see.
	KubeletMark = network.KubeletMark
)

// Options configure Load. The zero value suits an agent in the host's network
// namespace that sees the host's bpffs and cgroup2 tree.
type Options struct {
	PinRoot     string // default DefaultPinRoot; must be on a bpffs
	CgroupRoot  string // default: the cgroup2 mount
	HostNetns   string // path of the host's network namespace; default: the agent's own
	KubeletMark uint32 // default KubeletMark
	LSMPath     string // file that lists the active security modules; default: the host's
	Log         *slog.Logger

	noTCX bool // for tests: behave as on a kernel without tcx
}

// Feature is something that the programs need from the kernel, with the reason if
// it is missing; or a pin that could not be repaired.
type Feature struct {
	Name   string
	OK     bool
	Reason string
}

// Unavailable is returned by Load when no program can be loaded. The agent then
// runs without eBPF and reports Reason.
type Unavailable struct {
	Feature, Reason string
	Err             error
}

func (e *Unavailable) Error() string {
	s := fmt.Sprintf("eBPF unavailable: %s: %s", e.Feature, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Unavailable) Unwrap() error { return e.Err }

// Loader holds the loaded programs and maps. It does not hold links: their pins
// do, and the Loader reads them from the kernel each time.
type Loader struct {
	opts     Options
	log      *slog.Logger
	maps     map[string]*ebpf.Map
	programs map[string]*ebpf.Program
	features []Feature
	// attachTypes maps all programs, loaded or not, to their hooks.
	attachTypes map[string]ebpf.AttachType
	// unfilled lists maps that may lack rows of the old map, and unready the
	// programs that use them.
	unfilled         []string
	unready          map[string]bool
	tcx              bool
	mu               sync.Mutex // serialises attach and detach
	takeoverFinished bool
}

// Load opens the pinned programs and maps, loads missing and changed ones, and
// updates every pinned link to them. Unchanged programs and maps keep their kernel
// ids. A program that the kernel rejects is a missing Feature, not an error; so is
// an unusable pin that cannot be replaced.
func Load(opts Options) (*Loader, error) {
	if opts.PinRoot == "" {
		opts.PinRoot = DefaultPinRoot
	}
	if opts.KubeletMark == 0 {
		opts.KubeletMark = KubeletMark
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	if opts.CgroupRoot == "" {
		root, err := CgroupMount()
		if err != nil {
			return nil, &Unavailable{"cgroup2", "no cgroup v2 tree is mounted", err}
		}
		opts.CgroupRoot = root
	}
	if opts.LSMPath == "" {
		// Containers have no securityfs; process 1 is the host's.
		opts.LSMPath = "/sys/kernel/security/lsm"
		if _, err := os.Stat(opts.LSMPath); err != nil {
			opts.LSMPath = "/proc/1/root" + opts.LSMPath
		}
	}
	l := &Loader{opts: opts, log: opts.Log, maps: map[string]*ebpf.Map{}, programs: map[string]*ebpf.Program{},
		attachTypes: map[string]ebpf.AttachType{}, unready: map[string]bool{}, tcx: !opts.noTCX && haveTCX()}
	if err := l.load(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Loader) load() error {
	if err := checkBPFFS(l.opts.PinRoot); err != nil {
		return err
	}
	for _, d := range []string{"maps", "progs", "links"} {
		if err := l.makeDir(d); err != nil {
			return &Unavailable{"bpffs", "cannot create " + l.pin(d), err}
		}
	}
	cookie, err := NetnsCookie(l.opts.HostNetns)
	if err != nil {
		return &Unavailable{"netns cookie", "the host's network namespace cannot be identified (needs Linux 5.14 or newer)", err}
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		l.log.Debug("memlock limit not raised; Linux 5.11 and newer do not need it", "error", err)
	}
	specs, err := loadSpecs()
	if err != nil {
		return fmt.Errorf("parse the embedded eBPF objects: %w", err)
	}
	changed, err := l.openMaps(specs)
	if err != nil {
		var u *Unavailable
		if errors.As(err, &u) {
			return err
		}
		return &Unavailable{"bpf", "maps cannot be created (CAP_BPF, or CAP_SYS_ADMIN)", err}
	}
	// Write the configuration before any new program runs.
	cfg, err := l.readConfig()
	if err != nil {
		return err
	}
	want := cfg
	want.HostNetns, want.KubeletMark = cookie, l.opts.KubeletMark
	if want.AgentCgroup, err = ownCgroupID(l.opts.CgroupRoot); err != nil {
		l.log.Warn("servers that host-network pods start before the agent knows the pods cannot be confined", "error", err)
	}
	if want != cfg {
		if err := l.writeConfig(want); err != nil {
			return err
		}
	}
	created := l.openPrograms(specs)
	if err := l.updateLinks(); err != nil {
		return err
	}
	// Replace the pins last: after a crash before this point the old set stays
	// attached, and the next start repeats everything.
	if err := l.pinAll(changed, created); err != nil {
		// Everything is attached and works; the next start has to find it without these pins.
		l.features = append(l.features, Feature{Name: "pins", Reason: err.Error()})
	}
	l.dropUnknownPins()
	return nil
}

// loadSpecs returns the embedded objects. It parses them for each Load, because
// loading modifies them.
func loadSpecs() ([]*ebpf.CollectionSpec, error) {
	var out []*ebpf.CollectionSpec
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadVrfbind, loadProbe, loadGuard, loadPacket, loadUnixsock} {
		spec, err := load()
		if err != nil {
			return nil, err
		}
		out = append(out, spec)
	}
	return out, nil
}

// Features lists the required features, missing ones with a reason.
func (l *Loader) Features() []Feature { return slices.Clone(l.features) }

// Missing describes the missing features in one line; it is empty if none is.
func (l *Loader) Missing() string {
	var out []string
	for _, f := range l.features {
		if !f.OK {
			out = append(out, f.Name+": "+f.Reason)
		}
	}
	return strings.Join(out, "; ")
}

// ProgramIDs returns the kernel ids by program name, as bpftool shows them.
func (l *Loader) ProgramIDs() (map[string]ebpf.ProgramID, error) {
	out := map[string]ebpf.ProgramID{}
	for name, p := range l.programs {
		info, err := p.Info()
		if err != nil {
			return nil, fmt.Errorf("read info of program %s: %w", name, err)
		}
		out[name], _ = info.ID()
	}
	return out, nil
}

// CgroupRoot is the cgroup2 mount that the Loader uses.
func (l *Loader) CgroupRoot() string { return l.opts.CgroupRoot }

// Close closes file descriptors. Everything pinned stays and keeps working.
func (l *Loader) Close() {
	for _, p := range l.programs {
		p.Close()
	}
	for _, m := range l.maps {
		m.Close()
	}
}

// Purge detaches every program and removes every pin. Uninstallation uses it.
func Purge(pinRoot string) error {
	l := &Loader{opts: Options{PinRoot: pinRoot}, log: slog.Default(), tcx: haveTCX()}
	var errs []error
	names, err := l.linkDirs()
	errs = append(errs, err)
	for _, n := range names {
		errs = append(errs, l.detach(n))
	}
	if !l.tcx {
		filters, err := l.filterAttachments(nil)
		errs = append(errs, err)
		for _, a := range filters {
			errs = append(errs, l.detachFilters(a.Ifindex))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(pinRoot))...)
}

func (l *Loader) pin(elem ...string) string {
	return filepath.Join(append([]string{l.opts.PinRoot}, elem...)...)
}

// checkBPFFS checks that path is on a bpffs, by its nearest existing directory.
func checkBPFFS(path string) error {
	for dir := path; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			continue
		}
		if err != nil {
			return &Unavailable{"bpffs", "cannot stat " + dir, err}
		}
		if st.Type != unix.BPF_FS_MAGIC {
			return &Unavailable{"bpffs", dir + " is not a bpf file system: mount one (mount -t bpf bpf /sys/fs/bpf) and share it with the agent", nil}
		}
		return nil
	}
}
