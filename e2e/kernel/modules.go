package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is a kernel module: its name, and its ELF image without compression.
type module struct {
	name  string
	image []byte
}

// moduleTree finds the modules of one kernel. Debian's package leaves
// modules.dep to depmod, which runs when a kernel is installed. The kernel here
// isn't installed, so dependencies come from where depmod takes them too: the
// .modinfo section of each module.
type moduleTree struct {
	// files maps the name of a module to its file.
	files map[string]string
	// builtin has the names of what is part of the kernel's own image.
	builtin map[string]bool
	// read returns a module's image. Tests replace it.
	read func(ctx context.Context, file string) ([]byte, error)
}

// openModules lists the modules below dir, a kernel's /lib/modules/<release>.
func openModules(dir string) (*moduleTree, error) {
	tree := &moduleTree{files: map[string]string{}, builtin: map[string]bool{}, read: readModule}
	err := filepath.WalkDir(filepath.Join(dir, "kernel"), func(file string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if name, ok := moduleName(file); ok {
				tree.files[name] = file
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list kernel modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("list modules that are built in: %w", err)
	}
	for file := range strings.FieldsSeq(string(list)) {
		if name, ok := moduleName(file); ok {
			tree.builtin[name] = true
		}
	}
	return tree, nil
}

// resolve returns the named modules and all that they need, each once, in an
// order in which they load: what is needed comes first. Modules that are built
// in are left out. A soft dependency that doesn't exist is left out as well; a
// hard one is an error.
func (m *moduleTree) resolve(ctx context.Context, names ...string) ([]module, error) {
	var (
		order []module
		state = map[string]int{} // 1: being resolved, 2: in order
		visit func(name string) error
	)
	visit = func(name string) error {
		name = canonical(name)
		if m.builtin[name] || state[name] == 2 {
			return nil
		}
		if state[name] == 1 {
			return fmt.Errorf("module %s depends on itself", name)
		}
		file, ok := m.files[name]
		if !ok {
			return fmt.Errorf("module %s: %w", name, fs.ErrNotExist)
		}
		state[name] = 1
		image, err := m.read(ctx, file)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		depends, before, err := dependencies(image)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, soft := range before {
			// The name may be that of an algorithm, an alias of the modules that
			// have it: the portable one is called so.
			for _, candidate := range []string{soft, soft + "_generic"} {
				if _, ok := m.files[canonical(candidate)]; ok {
					depends = append(depends, candidate)
					break
				}
			}
		}
		for _, need := range depends {
			if err := visit(need); err != nil {
				return fmt.Errorf("needed by %s: %w", name, err)
			}
		}
		state[name] = 2
		order = append(order, module{name: name, image: image})
		return nil
	}
	for _, name := range names {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// dependencies reads what a module needs ("depends") and what it wants to be
// loaded before it ("softdep pre:") from its .modinfo section.
func dependencies(image []byte) (depends, before []string, err error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, nil, errors.New("no .modinfo section")
	}
	data, err := section.Data()
	if err != nil {
		return nil, nil, fmt.Errorf("read .modinfo: %w", err)
	}
	depends, before = parseModinfo(data)
	return depends, before, nil
}

// parseModinfo splits a .modinfo section: key=value strings with a zero byte
// after each.
func parseModinfo(data []byte) (depends, before []string) {
	for entry := range strings.SplitSeq(string(data), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			for name := range strings.SplitSeq(value, ",") {
				if name != "" {
					depends = append(depends, name)
				}
			}
		case "softdep":
			pre := false
			for word := range strings.FieldsSeq(value) {
				if word == "pre:" || word == "post:" {
					pre = word == "pre:"
				} else if pre {
					before = append(before, word)
				}
			}
		}
	}
	return depends, before
}

// moduleName returns the name of the module that a file holds.
func moduleName(file string) (string, bool) {
	name, suffix, ok := strings.Cut(filepath.Base(file), ".ko")
	switch suffix {
	case "", ".xz", ".zst", ".gz":
		return canonical(name), ok
	}
	return "", false
}

// canonical spells a module's name as the kernel does: files and module
// information use dashes and underscores for the same thing.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// readModule reads a module and unpacks it when it is compressed.
func readModule(ctx context.Context, file string) ([]byte, error) {
	unpack, ok := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}[filepath.Ext(file)]
	if !ok {
		return os.ReadFile(file)
	}
	image, err := exec.CommandContext(ctx, unpack, "-dc", file).Output()
	if err != nil {
		return nil, fmt.Errorf("%s -dc %s: %w", unpack, file, withStderr(err))
	}
	return image, nil
}

// withStderr adds what a command wrote to its standard error.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}
