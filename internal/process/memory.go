package process

import (
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// memoryShare is the Go memory limit in percent of the container's: the rest is for the
// kernel, and for memory that the Go runtime doesn't count.
const memoryShare = 90

// LimitMemory sets the Go memory limit from that of the process's control group, unless
// GOMEMLIMIT is set. Without it the heap may grow to twice the live memory, and the kernel
// kills the process because of garbage. A manifest can set GOMEMLIMIT to the container's limit
// (resourceFieldRef), but to no share of it, which leaves nothing for the rest.
func LimitMemory(log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit, err := groupLimit(os.DirFS("/"))
	if err != nil {
		log.Debug("read the memory limit of the container", "err", err)
		return
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit / 100 * memoryShare)
		log.Debug("memory limit set", "container", limit, "heap", limit/100*memoryShare)
	}
}

// LimitGarbage sets the GC percentage, unless GOGC is set.
func LimitGarbage(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// ballastSize is in bytes.
const ballastSize = 16 << 20

// Ballast makes the garbage collector of a program with a small heap run less often, by
// allowing ballastSize more garbage. The ballast itself is never touched and takes no
// memory. In mirror and policy it saves a tenth of the processor time at high rates of
// change. It ends when release is called. GOGC would allow more garbage to a large heap, too.
func Ballast() (release func()) {
	ballast := make([]byte, ballastSize)
	return func() { runtime.KeepAlive(ballast) }
}

// groupLimit returns the lowest memory limit, in bytes, of the control group of this process
// and its parents; 0: none. See the kernel's documentation, admin-guide/cgroup-v2.rst and
// cgroup-v1/memory.rst.
func groupLimit(root fs.FS) (int64, error) {
	content, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, err
	}
	var least int64
	for line := range strings.Lines(string(content)) {
		// As in "0::/kubepods/pod1/agent" (version 2), "4:memory:/kubepods/..." (1).
		_, after, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(after, ":")
		folder, name := "sys/fs/cgroup", "memory.max"
		switch controllers {
		case "":
		case "memory":
			folder, name = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// In a cgroup namespace the root is that of the container, as is the mount.
		for group = path.Clean("/" + group); ; group = path.Dir(group) {
			limit, err := readLimit(root, path.Join(folder, group, name))
			if err != nil {
				return 0, err
			}
			if limit > 0 && (least == 0 || limit < least) {
				least = limit
			}
			if group == "/" {
				break
			}
		}
	}
	return least, nil
}

// readLimit returns 0 without a limit or file.
func readLimit(root fs.FS, name string) (int64, error) {
	content, err := fs.ReadFile(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(content))
	if text == "max" {
		return 0, nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	// Version 1 represents no limit as the largest number of pages.
	const pages = 64 << 10
	if err != nil || limit >= math.MaxInt64-pages {
		return 0, err
	}
	return limit, nil
}
