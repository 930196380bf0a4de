package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryGroup is a control group with a memory limit, including kernel memory; beyond it the
// kernel kills its processes, as with a pod's.
type MemoryGroup struct {
	path  string // of the group's folder
	mount string // commands that mount the hierarchy at /sys/fs/cgroup
	peak  string // file
	kills string // file with a line "oom_kill 0"
	inner string // path of the group's folder where that is mounted
}

// NewMemoryGroup creates a group inside that of this process. An error means that this
// machine doesn't allow it.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(own)) {
		_, after, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(after, ":")
		switch controllers {
		case "memory":
			g := &MemoryGroup{
				path: path.Join("/sys/fs/cgroup/memory", group, name), peak: "memory.max_usage_in_bytes", kills: "memory.oom_control",
				mount: "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory && mount -t cgroup -o memory none /sys/fs/cgroup/memory",
				inner: path.Join("/sys/fs/cgroup/memory", group, name),
			}
			err := g.make("memory.limit_in_bytes", limit)
			return g, err
		case "":
			parent := path.Join("/sys/fs/cgroup", group)
			if controllers, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers")); err != nil || !strings.Contains(string(controllers), "memory") {
				continue
			}
			if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				return nil, err
			}
			g := &MemoryGroup{
				path: filepath.Join(parent, name), peak: "memory.peak", kills: "memory.events",
				mount: "mount -t cgroup2 none /sys/fs/cgroup", inner: filepath.Join(parent, name),
			}
			err := g.make("memory.max", limit)
			return g, err
		}
	}
	return nil, fmt.Errorf("no control group for memory in %q", own)
}

func (g *MemoryGroup) make(limitFile string, limit int64) error {
	if err := os.Mkdir(g.path, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(g.path, limitFile), []byte(strconv.FormatInt(limit, 10)), 0)
}

// Wrap writes a program of the same name into another folder that starts the given one
// in the group, with the group's files where a container has them, and returns its path.
func (g *MemoryGroup) Wrap(dir, program string) (string, error) {
	wrapped := filepath.Join(dir, filepath.Base(program))
	script := fmt.Sprintf("#!/bin/sh\nset -e\n%s\necho $$ > %s/cgroup.procs\nexec %s \"$@\"\n", g.mount, g.inner, program)
	return wrapped, os.WriteFile(wrapped, []byte(script), 0o755)
}

// Peak returns the peak memory of the group in bytes, 0 if the kernel doesn't report it, and
// the number of OOM kills.
func (g *MemoryGroup) Peak() (bytes int64, kills int, err error) {
	peak, err := os.ReadFile(filepath.Join(g.path, g.peak))
	if errors.Is(err, fs.ErrNotExist) {
		peak, err = []byte("0"), nil // Linux before 5.19
	}
	if err != nil {
		return 0, 0, err
	}
	if bytes, err = strconv.ParseInt(strings.TrimSpace(string(peak)), 10, 64); err != nil {
		return 0, 0, err
	}
	events, err := os.ReadFile(filepath.Join(g.path, g.kills))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(events)) {
		if text, found := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); found {
			kills, err = strconv.Atoi(text)
		}
	}
	return bytes, kills, err
}

// Remove removes the group, whose processes have ended.
func (g *MemoryGroup) Remove() error { return os.Remove(g.path) }
