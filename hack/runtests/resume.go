// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"bulkhead/test/sampling"
)

// passedStages records which stages of `make test-full` have passed for the files that they
// read, so that an interrupted run resumes. With uncommitted changes it records nothing.
type passedStages struct {
	dir   string
	files []string // lines of git ls-tree: mode, type, id and path; none with uncommitted changes
}

func openPassed() (passedStages, error) {
	files, err := committedFiles()
	if err != nil || files == nil {
		return passedStages{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return passedStages{}, fmt.Errorf("find the user's cache directory: %w", err)
	}
	p := passedStages{dir: filepath.Join(cache, "bulkhead", "test-full"), files: files}
	return p, os.MkdirAll(p.dir, 0o755)
}

// committedFiles lists the checked-out commit's files, nil if there are uncommitted changes.
func committedFiles() ([]string, error) {
	changes, err := exec.Command("git", "status", "--porcelain").Output()
	if err != nil {
		return nil, fmt.Errorf("read the state of the checkout: %w", err)
	}
	if len(changes) > 0 {
		return nil, nil
	}
	files, err := exec.Command("git", "ls-tree", "-r", "HEAD").Output()
	if err != nil {
		return nil, fmt.Errorf("list the checked-out files: %w", err)
	}
	return strings.Split(strings.TrimSpace(string(files)), "\n"), nil
}

// inputs identifies the stage's command and the files that it reads.
func (s stage) inputs(files []string) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q\n", s.args)
	if s.ownSample {
		fmt.Fprintln(sum, os.Getenv(sampling.SeedEnv))
	}
	for _, line := range files {
		if _, path, _ := strings.Cut(line, "\t"); s.reads == nil || s.reads(path) {
			fmt.Fprintln(sum, line)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// seed chooses the stage's samples: that of the environment, the commit or, for a stage whose samples are its own, what
// it reads, so that a commit which changes nothing of that does not choose another sample.
func (p passedStages) seed(ctx context.Context, s stage) string {
	if !s.ownSample || p.files == nil || os.Getenv(sampling.SeedEnv) != "" {
		return sampling.Seed(ctx)
	}
	return s.name + "-" + s.inputs(p.files)
}

func (p passedStages) path(s stage) string {
	return filepath.Join(p.dir, s.name+"-"+s.inputs(p.files))
}

// get returns the counts of a stage that has passed.
func (p passedStages) get(s stage) (c counts, ok bool, err error) {
	if p.files == nil {
		return c, false, nil
	}
	raw, err := os.ReadFile(p.path(s))
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return c, false, fmt.Errorf("read the result of stage %s: %w", s.name, err)
	}
	return c, true, nil
}

// put records a stage that has passed. It fails if a file that the stage reads is not the one that the run
// began with: nobody knows what the stage has tested.
func (p passedStages) put(s stage, c counts) error {
	if p.files == nil {
		return nil
	}
	files, err := committedFiles()
	switch {
	case err != nil:
		return err
	case files == nil || s.inputs(files) != s.inputs(p.files):
		return fmt.Errorf("the checkout changed while stage %s ran, and its result is not recorded: run the tests in a clone that nobody edits", s.name)
	case c.Failed > 0:
		return nil
	}
	raw, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(p.path(s), raw, 0o644)
	}
	if err != nil {
		return fmt.Errorf("record the result of stage %s: %w", s.name, err)
	}
	return nil
}
