package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is one mount of a private mount namespace.
type Mount struct {
	// Type is "bind", "tmpfs", "sysfs" or "overlay".
	Type string
	// Source is the file or folder to bind, or for an overlay the folder that
	// keeps its changes. Other types have none.
	Source string
	// Target is where it appears. A missing target is created only below an
	// earlier mount, never in the file system of this machine.
	Target string
}

// Bind makes a file or folder of this machine appear at target.
func Bind(source, target string) Mount { return Mount{Type: "bind", Source: source, Target: target} }

// Tmpfs hides what is at target behind an empty file system in memory.
func Tmpfs(target string) Mount { return Mount{Type: "tmpfs", Target: target} }

// Sysfs mounts a sysfs of the network namespace, because the one of this
// machine goes on showing this machine's links (sysfs is tagged by namespace
// when it is mounted).
func Sysfs() Mount { return Mount{Type: "sysfs", Target: "/sys"} }

// Overlay makes target writable without touching this machine: changes go to
// the folder.
func Overlay(target, changes string) Mount {
	return Mount{Type: "overlay", Source: changes, Target: target}
}

// mountAll mounts in the mount namespace of the calling thread, which must be
// its own. earlier are mounts that are there already.
func mountAll(earlier, mounts []Mount) error {
	// Otherwise our mounts would propagate to this machine: its mounts are
	// shared by default under systemd (mount_namespaces(7)).
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	for i, m := range mounts {
		if err := m.mount(append(earlier[:len(earlier):len(earlier)], mounts[:i]...)); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.Type, m.Target, err)
		}
	}
	return nil
}

func (m Mount) mount(earlier []Mount) error {
	target, err := m.prepare(earlier)
	if err != nil {
		return err
	}
	switch m.Type {
	case "bind":
		return unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, "")
	case "tmpfs":
		return unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	case "sysfs":
		return unix.Mount("sysfs", target, "sysfs", 0, "")
	case "overlay":
		upper, work := filepath.Join(m.Source, "upper"), filepath.Join(m.Source, "work")
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
			return err
		}
		return unix.Mount("overlay", target, "overlay", 0,
			"lowerdir="+target+",upperdir="+upper+",workdir="+work)
	default:
		return errors.New("unknown type")
	}
}

// prepare returns the target with symbolic links resolved (/var/run is one),
// after it has created it if need be.
func (m Mount) prepare(earlier []Mount) (string, error) {
	// The deepest part of the target that exists, and what lies below it.
	existing, missing := m.Target, ""
	for {
		if _, err := os.Stat(existing); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		missing = filepath.Join(filepath.Base(existing), missing)
		existing = filepath.Dir(existing)
	}
	existing, err := filepath.EvalSymlinks(existing)
	if err != nil {
		return "", err
	}
	target := filepath.Join(existing, missing)
	if missing == "" {
		return target, nil
	}
	private := false
	for _, e := range earlier {
		private = private || e.Type != "sysfs" && strings.HasPrefix(target, e.Target+"/")
	}
	if !private {
		return "", errors.New("the target doesn't exist, and creating it would change this machine")
	}
	if m.Type != "bind" {
		return target, os.MkdirAll(target, 0o755)
	}
	source, err := os.Stat(m.Source)
	if err != nil {
		return "", err
	}
	if source.IsDir() {
		return target, os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	return target, os.WriteFile(target, nil, 0o644)
}
