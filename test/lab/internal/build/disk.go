// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"

	"bulkhead/hack/cache"
	"bulkhead/test/lab/internal/sys"
)

//go:embed disk.go
var diskSource string

// Disk writes a directory tree to a disk image for read-only use. The image has
// no journal, and no checksums, which are slow under emulation. It keeps owners,
// modes and extended attributes.
func Disk(ctx context.Context, tree, file string, log io.Writer) error {
	const block = 4096
	files, blocks := 0, int64(0)
	if err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		blocks += info.Size()/block + 1
		return nil
	}); err != nil {
		return fmt.Errorf("compute the size of %s: %w", tree, err)
	}
	// Add space for inodes of 256 bytes, the extents of large files and the block
	// groups' tables. Unused blocks take no space: the file is sparse.
	blocks += blocks/20 + int64(files)/16 + 16<<20/block
	cmd := exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", sys.DiskKind, "-b", fmt.Sprint(block), "-m", "0", "-N", fmt.Sprint(files+64),
		"-O", "^has_journal,^metadata_csum,^resize_inode", "-d", tree, file, fmt.Sprint(blocks))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("write %s to a disk image with mke2fs: %w", tree, err)
	}
	return nil
}

// RootDisk returns the disk image of a root file system.
func RootDisk(ctx context.Context, rootfs string, log io.Writer) (string, error) {
	const name = "root.img"
	dir, err := cache.Entry("rootdisk", cache.Key(diskSource, filepath.Base(rootfs)), 2, func(dir string) error {
		return Disk(ctx, rootfs, filepath.Join(dir, name), log)
	})
	return filepath.Join(dir, name), err
}
