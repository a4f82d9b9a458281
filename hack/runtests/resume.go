// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// passedStages records which stages of `make test-full` have passed for the
// checked-out tree, so that an interrupted run resumes. With uncommitted changes
// it records nothing.
type passedStages struct{ dir string }

func openPassed() (passedStages, error) {
	tree, err := cleanTree()
	if err != nil || tree == "" {
		return passedStages{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return passedStages{}, fmt.Errorf("find the user's cache directory: %w", err)
	}
	p := passedStages{dir: filepath.Join(cache, "bulkhead", "test-full", tree)}
	return p, os.MkdirAll(p.dir, 0o755)
}

// cleanTree returns the id of the checked-out tree, "" if there are uncommitted changes.
func cleanTree() (string, error) {
	changes, err := exec.Command("git", "status", "--porcelain").Output()
	if err != nil {
		return "", fmt.Errorf("read the state of the checkout: %w", err)
	}
	if len(changes) > 0 {
		return "", nil
	}
	tree, err := exec.Command("git", "rev-parse", "HEAD^{tree}").Output()
	if err != nil {
		return "", fmt.Errorf("read the checked-out tree: %w", err)
	}
	return strings.TrimSpace(string(tree)), nil
}

// get returns the counts of a stage that has passed.
func (p passedStages) get(stage string) (c counts, ok bool, err error) {
	if p.dir == "" {
		return c, false, nil
	}
	raw, err := os.ReadFile(filepath.Join(p.dir, stage))
	if errors.Is(err, fs.ErrNotExist) {
		return c, false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return c, false, fmt.Errorf("read the result of stage %s: %w", stage, err)
	}
	return c, true, nil
}

// put records a stage that has passed. It fails if the checkout is not the one that the run began
// with: nobody knows what the stage has tested.
func (p passedStages) put(stage string, c counts) error {
	if p.dir == "" {
		return nil
	}
	switch tree, err := cleanTree(); {
	case err != nil:
		return err
	case tree != filepath.Base(p.dir):
		return fmt.Errorf("the checkout changed while stage %s ran, and its result is not recorded: run the tests in a clone that nobody edits", stage)
	case c.Failed > 0:
		return nil
	}
	raw, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, stage), raw, 0o644)
	}
	if err != nil {
		return fmt.Errorf("record the result of stage %s: %w", stage, err)
	}
	return nil
}
