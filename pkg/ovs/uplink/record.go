// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultRecord is the record's file on the node. It must survive a reboot.
const DefaultRecord = "/var/lib/bulkhead/uplink.json"

// Lock implements Target: with a file beside the record, which bulkheadctl locks too.
func (n *Node) Lock(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(n.file), 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the uplink's record: %w", err)
	}
	f, err := os.OpenFile(n.file+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the uplink's record: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- unix.Flock(int(f.Fd()), unix.LOCK_EX) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		go func() { <-done; f.Close() }()
		return nil, fmt.Errorf("wait for another process that moves the uplink: %w", ctx.Err())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the uplink's record: %w", err)
	}
	return func() { f.Close() }, nil
}

// Record implements Target.
func (n *Node) Record(context.Context) (Record, error) {
	b, err := os.ReadFile(n.file)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{AcceptRA: -1}, nil
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the uplink's record: %w", err)
	}
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fmt.Errorf("%s: %w: delete the file once the uplink's addresses are where they belong", n.file, err)
	}
	boot, err := bootID()
	if err != nil {
		return Record{}, err
	}
	return r.inBoot(boot), nil
}

// inBoot returns what a record still means in a boot: after a reboot the operating system has configured
// the uplink again, perhaps with other addresses.
func (r Record) inBoot(boot string) Record {
	if r.BootID == boot {
		return r
	}
	switch r.Phase {
	case PhaseRestoring, PhaseRestored:
		return Record{Phase: r.Phase, Bridge: r.Bridge, Uplink: r.Uplink, AcceptRA: -1}
	default:
		return Record{AcceptRA: -1}
	}
}

// save writes the record durably: after a power failure the file is the old or the new one.
func (n *Node) save(r Record) error {
	var err error
	if r.BootID, err = bootID(); err != nil {
		return err
	}
	r.BridgeIndex = 0
	if l, err := n.link(r.Bridge); err != nil {
		return err
	} else if l != nil {
		r.BridgeIndex = l.Attrs().Index
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("render the uplink's record: %w", err)
	}
	if err := writeDurably(n.file, append(b, '\n')); err != nil {
		return fmt.Errorf("write the uplink's record: %w", err)
	}
	return nil
}

func writeDurably(file string, b []byte) error {
	f, err := os.OpenFile(file+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the id of this boot: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
