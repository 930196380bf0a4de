package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// groupsFile is the file of a testbed's folder that lists its control groups: the
// folders that the cleanup removes, with all below them.
const groupsFile = "control-groups"

// groups are the control groups of one machine, one in each hierarchy: in version 1
// below those of this process, so that no limit of its is left behind.
type groups struct {
	// hierarchies are the options that mount each (cgroups(7)), such as "cpu" and
	// "name=systemd"; empty for version 2.
	hierarchies []string
	// paths are those of the machine's groups in them.
	paths []string
}

// controlGroupRoot is where Linux distributions mount the hierarchies.
const controlGroupRoot = "/sys/fs/cgroup"

// newGroups makes the control groups of a machine.
func (tb *Testbed) newGroups(machine string) (groups, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return groups{}, err
	}
	var g groups
	list, err := os.OpenFile(filepath.Join(tb.state.dir, groupsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return g, err
	}
	defer func() { _ = list.Close() }() // Unbuffered.
	unified := isUnified()
	for line := range strings.Lines(string(own)) {
		_, after, _ := strings.Cut(strings.TrimSpace(line), ":")
		hierarchy, group, _ := strings.Cut(after, ":")
		if unified != (hierarchy == "") {
			continue // Beside others, version 2 has no controllers.
		}
		mount := filepath.Join(controlGroupRoot, strings.TrimPrefix(hierarchy, "name="))
		if _, err := os.Stat(mount); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if unified {
			group = "/" // The only one that may have both processes and controllers below it.
		}
		parent := filepath.Join(group, filepath.Base(tb.state.dir))
		if _, err := fmt.Fprintln(list, filepath.Join(mount, parent)); err != nil {
			return g, err
		}
		for _, path := range []string{parent, filepath.Join(parent, machine)} {
			if err := makeGroup(hierarchy, filepath.Join(mount, path)); err != nil {
				return g, fmt.Errorf("make the control group %s: %w", filepath.Join(mount, path), err)
			}
		}
		g.hierarchies = append(g.hierarchies, hierarchy)
		g.paths = append(g.paths, filepath.Join(parent, machine))
	}
	if len(g.paths) == 0 {
		return g, fmt.Errorf("no control groups below %s, this process is in %q", controlGroupRoot, own)
	}
	return g, nil
}

// isUnified says whether this machine has version 2 alone.
func isUnified() bool {
	_, err := os.Stat(filepath.Join(controlGroupRoot, "cgroup.controllers"))
	return err == nil
}

// makeGroup makes one control group whose processes may use what those of its
// parent may.
func makeGroup(hierarchy, path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	switch {
	case hierarchy == "":
		controllers, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup.controllers"))
		if err != nil {
			return err
		}
		var enable []string
		for controller := range strings.FieldsSeq(string(controllers)) {
			enable = append(enable, "+"+controller)
		}
		// First: without it the group has no files of controllers.
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0); err != nil {
			return err
		}
	case slices.Contains(strings.Split(hierarchy, ","), "cpuset"):
		// New ones are empty, and take no process (cpusets(7)).
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			content, err := os.ReadFile(filepath.Join(filepath.Dir(path), file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(path, file), content, 0); err != nil {
				return err
			}
		}
	}
	// A higher priority than other load of this machine, so that tests that count packets
	// don't depend on it.
	for file, most := range map[string]string{"cpu.shares": "262144", "cpu.weight": "10000"} {
		if err := os.WriteFile(filepath.Join(path, file), []byte(most), 0); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// removeGroups removes the control groups that a file lists, whose processes have
// ended. No file: there are none.
func removeGroups(file string) error {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for path := range strings.Lines(string(content)) {
		errs = append(errs, removeGroup(strings.TrimSpace(path)))
	}
	return errors.Join(errs...)
}

// removeGroup removes a control group and all below it.
func removeGroup(path string) error {
	var folders []string
	err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, folder := range slices.Backward(folders) {
		// A process that has just ended may still hold its group.
		deadline := time.Now().Add(5 * time.Second)
		err := syscall.Rmdir(folder)
		for errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline) {
			time.Sleep(20 * time.Millisecond)
			err = syscall.Rmdir(folder)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the control group %s: %w", folder, err)
		}
	}
	return nil
}
