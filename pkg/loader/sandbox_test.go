// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sandbox is a bpffs, a cgroup tree and a network namespace for one test. The
// programs act in that namespace only, so the test does not affect the machine, nor
// other tests beside it.
type sandbox struct {
	t       *testing.T
	pinRoot string
	cgroup  string
	lsm     string // file that lists the active security modules
	noTCX   bool
	ns      *netNS
}

func newSandbox(t *testing.T) *sandbox {
	t.Helper()
	t.Parallel() // they mostly wait, for the kernel to end namespaces and programs
	if os.Geteuid() != 0 {
		t.Skip("skip: no-root: loading eBPF, cgroups and namespaces need root")
	}
	mount, err := CgroupMount()
	if err != nil {
		t.Skip("skip: no-cgroup2:", err)
	}
	s := &sandbox{t: t}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Skipf("skip: no-bpffs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s.pinRoot = filepath.Join(dir, "bulkhead")
	s.lsm = filepath.Join(t.TempDir(), "lsm")
	security := t.TempDir()
	if unix.Mount("securityfs", security, "securityfs", 0, "") == nil {
		t.Cleanup(func() { unix.Unmount(security, unix.MNT_DETACH) })
		s.lsm = filepath.Join(security, "lsm")
	}
	s.cgroup, err = os.MkdirTemp(mount, "bh-test-")
	if err != nil {
		t.Skipf("skip: cgroup2-read-only: %v", err)
	}
	t.Cleanup(func() { removeTree(s.cgroup) })
	s.ns = newNetNS(t)
	return s
}

func removeTree(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()))
		}
	}
	os.Remove(dir)
}

func (s *sandbox) load() *Loader {
	s.t.Helper()
	l, err := Load(s.options())
	var u *Unavailable
	if errors.As(err, &u) {
		s.t.Skipf("skip: no-bpf: %v", err)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range l.Features() {
		if !f.OK && !strings.Contains(f.Name, "bh_lsm_") { // TestRootLSM skips without them
			s.t.Errorf("missing feature %s: %s", f.Name, f.Reason)
		}
	}
	s.t.Cleanup(l.Close)
	return l
}

func (s *sandbox) options() Options {
	return Options{PinRoot: s.pinRoot, CgroupRoot: s.cgroup, HostNetns: s.ns.path(), LSMPath: s.lsm, Log: slog.New(slog.DiscardHandler), noTCX: s.noTCX}
}

// cg creates a cgroup and returns its path.
func (s *sandbox) cg(name string) string {
	s.t.Helper()
	p := filepath.Join(s.cgroup, name)
	if err := os.MkdirAll(p, 0o755); err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *sandbox) id(path string) uint64 {
	s.t.Helper()
	id, err := CgroupID(path)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

func levelMask(t *testing.T, path string) uint32 {
	t.Helper()
	n, ok := CgroupLevel(path)
	if !ok {
		return AllLevels
	}
	return 1 << n
}

// proc is a running helper process.
type proc struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func (s *sandbox) start(cgroup string, uid int, ops ...string) *proc {
	s.t.Helper()
	return s.startIn(s.ns, cgroup, uid, ops...)
}

func (s *sandbox) startIn(ns *netNS, cgroup string, uid int, ops ...string) *proc {
	s.t.Helper()
	fd, err := os.Open(cgroup)
	if err != nil {
		s.t.Fatal(err)
	}
	defer fd.Close()
	p := &proc{cmd: exec.Command(helperBinary)}
	p.cmd.Env = append(os.Environ(), helperEnv+"="+strings.Join(ops, "\n"))
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd()), Pdeathsig: 0}
	if uid != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
	}
	p.in, _ = p.cmd.StdinPipe()
	out, _ := p.cmd.StdoutPipe()
	p.out = bufio.NewScanner(out)
	if err := ns.do(p.cmd.Start); err != nil {
		s.t.Fatalf("start helper: %v", err)
	}
	s.t.Cleanup(func() { p.stop() })
	return p
}

// next returns the next line of output. It kills a process that does not answer in
// time.
func (p *proc) next() string {
	defer time.AfterFunc(60*time.Second, func() { p.cmd.Process.Kill() }).Stop()
	if !p.out.Scan() {
		return "no output"
	}
	return p.out.Text()
}

// proceed sends the process a line of input.
func (p *proc) proceed() { fmt.Fprintln(p.in) }

func (p *proc) stop() {
	p.in.Close()
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// expect runs operations in one process and compares their output; each pair is an
// operation and its expected output.
func (s *sandbox) expect(what, cgroup string, uid int, pairs ...[2]string) {
	s.t.Helper()
	var ops []string
	for _, p := range pairs {
		ops = append(ops, p[0])
	}
	pr := s.start(cgroup, uid, ops...)
	defer pr.stop()
	for _, p := range pairs {
		if got := pr.next(); got != p[1] {
			s.t.Errorf("%s: %s: %s, want %s", what, p[0], got, p[1])
		}
	}
}

// outcome returns the output of one operation.
func (s *sandbox) outcome(cgroup string, uid int, op string) string {
	s.t.Helper()
	p := s.start(cgroup, uid, op)
	defer p.stop()
	return p.next()
}

// netNS is a network namespace, kept by an open file descriptor.
type netNS struct{ f *os.File }

func newNetNS(t *testing.T) *netNS {
	t.Helper()
	type result struct {
		f   *os.File
		err error
	}
	ch := make(chan result)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			ch <- result{nil, err}
			return
		}
		err = loopbackUp()
		// Without duplicate address detection, link-local addresses are usable at once.
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
		f, err2 := os.Open("/proc/thread-self/ns/net")
		ch <- result{f, errors.Join(err, err2)}
	}()
	r := <-ch
	if r.err != nil {
		t.Skipf("skip: no-netns: %v", r.err)
	}
	t.Cleanup(func() { r.f.Close() })
	return &netNS{r.f}
}

func (n *netNS) path() string { return fmt.Sprintf("/proc/self/fd/%d", n.f.Fd()) }

// do runs f on a thread in the namespace.
func (n *netNS) do(f func() error) error {
	ch := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(n.f.Fd()), unix.CLONE_NEWNET); err != nil {
			ch <- fmt.Errorf("enter namespace: %w", err)
			return
		}
		ch <- f()
	}()
	return <-ch
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// serve runs a TCP server that sends a greeting and a UDP echo server on an address
// in the namespace.
func (n *netNS) serve(t *testing.T, addr string) {
	t.Helper()
	err := n.do(func() error {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		pc, err := net.ListenPacket("udp", addr)
		if err != nil {
			ln.Close()
			return err
		}
		t.Cleanup(func() { ln.Close(); pc.Close() })
		go serveGreeting(ln, "hello")
		go func() {
			b := make([]byte, 64)
			for {
				k, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				pc.WriteTo(b[:k], from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatalf("serve on %s: %v", addr, err)
	}
}
