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

// memoryShare is how much of what a container may take the Go heap may, in
// percent: the rest is for what the runtime doesn't count, and for the kernel.
const memoryShare = 90

// LimitMemory has the garbage collector stay below the limit of the control group
// that the process is in, unless GOMEMLIMIT says something else: without that a
// heap may become twice as large as what is alive in it, and the kernel ends the
// process for garbage.
func LimitMemory(log *slog.Logger) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit, err := groupLimit(os.DirFS("/"))
	if err != nil {
		log.Debug("limit of memory isn't known", "err", err)
		return
	}
	if limit > 0 {
		debug.SetMemoryLimit(limit / 100 * memoryShare)
		log.Debug("memory is limited", "container", limit, "heap", limit/100*memoryShare)
	}
}

// LimitGarbage has the heap hold that much garbage, in percent of what is alive in it,
// unless GOGC says something else.
func LimitGarbage(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// ballastSize is in bytes.
const ballastSize = 16 << 20

// Ballast has the garbage collector of a program with a small heap work less often: it
// begins when there is about that much more garbage than without. What the program takes
// grows by that at most, however large its heap: the ballast itself is never touched, so
// that it takes no memory. In mirror and policy that saves a tenth of the processor time
// where much changes. It is over when release is called.
func Ballast() (release func()) {
	ballast := make([]byte, ballastSize)
	return func() { runtime.KeepAlive(ballast) }
}

// groupLimit returns the least limit, in bytes, of the control group of this
// process and those around it; 0: there is none. See the kernel's documentation,
// admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
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
		// Where the container has a namespace of groups the root is its own, and
		// what is mounted may be, too.
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

// readLimit returns 0 where there is no limit, or no file.
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
	// Version 1 says "none" with the largest number of pages.
	const pages = 64 << 10
	if err != nil || limit >= math.MaxInt64-pages {
		return 0, err
	}
	return limit, nil
}
