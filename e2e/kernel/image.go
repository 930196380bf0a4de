package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

// Accounts and names that the C library of an ordinary system would find, and
// that Go's resolver and os/user read.
const (
	passwdFile   = "root:x:0:0:root:/root:/bin/sh\n"
	groupFile    = "root:x:0:\n"
	hostsFile    = "127.0.0.1 localhost\n::1 localhost\n"
	nsswitchFile = "hosts: files\nprotocols: files\n"
	// protocolsFile is what ipset looks names up in.
	protocolsFile = "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n"
)

// image is the machine's whole file system.
type image struct {
	guest   string
	modules []module
	tests   []testBinary
	runExpr string
	// programs are more files, by their names in the machine.
	programs map[string]string
	// arguments are more for the tests of all packages but the machine's own.
	arguments []string
	timeout   time.Duration
	interval  time.Duration
}

// write writes the file system as a cpio archive.
func (i image) write(w io.Writer) error {
	a := newArchive(w)
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "run", "root", "etc", "var/lib", "lib/modules", "tests"} {
		if err := a.dir(dir); err != nil {
			return err
		}
	}
	if err := a.symlink("var/run", "/run"); err != nil {
		return err
	}
	if err := copyFile(a, "init", i.guest, 0o755); err != nil {
		return err
	}
	plan := wire.Plan{Heartbeat: i.interval}
	for _, m := range i.modules {
		file := "/lib/modules/" + m.name + ".ko"
		if err := a.file(file, 0o644, int64(len(m.image)), bytes.NewReader(m.image)); err != nil {
			return err
		}
		plan.Modules = append(plan.Modules, file)
	}
	for _, name := range slices.Sorted(maps.Keys(i.programs)) {
		if err := copyFile(a, name, i.programs[name], 0o755); err != nil {
			return err
		}
	}
	for _, t := range i.tests {
		program, err := i.addTest(a, t)
		if err != nil {
			return err
		}
		plan.Programs = append(plan.Programs, program)
	}
	encoded, err := json.MarshalIndent(plan, "", "  ")
	if err != nil {
		return fmt.Errorf("encode plan: %w", err)
	}
	for name, content := range map[string]string{
		"etc/passwd":        passwdFile,
		"etc/group":         groupFile,
		"etc/hosts":         hostsFile,
		"etc/nsswitch.conf": nsswitchFile,
		"etc/protocols":     protocolsFile,
		wire.PlanPath:       string(encoded),
	} {
		if err := a.file(name, 0o644, int64(len(content)), strings.NewReader(content)); err != nil {
			return err
		}
	}
	return a.end()
}

// addTest puts a test and its testdata into a folder of its own, which is the
// folder that the test runs in.
func (i image) addTest(a *archive, t testBinary) (wire.Program, error) {
	dir := path.Join("/tests", t.pkg)
	program := wire.Program{
		Name: t.pkg,
		Path: path.Join(dir, "test"),
		Dir:  dir,
		Args: []string{"-test.v=test2json", "-test.paniconexit0", "-test.timeout=" + i.timeout.String()},
		Env: []string{
			"SEMAPHORE_TEST_KERNEL=1", "HOME=/root", "USER=root", "TMPDIR=/tmp", "PATH=/usr/sbin:/usr/bin:/bin", "TERM=dumb",
			// The machine has no debugger and no second try: say all at once.
			"GOTRACEBACK=all",
		},
		// The test ends itself after its timeout, with all its goroutines'
		// stacks. The machine steps in only when it can't even do that.
		Timeout:  i.timeout + 30*time.Second,
		Required: t.pkg == selftestPkg,
	}
	if expression := cmp.Or(t.run, i.runExpr); expression != "" && !program.Required {
		program.Args = append(program.Args, "-test.run="+expression)
	}
	if !program.Required {
		program.Args = append(program.Args, i.arguments...)
	}
	if err := copyFile(a, program.Path, t.file, 0o755); err != nil {
		return wire.Program{}, err
	}
	if t.testdata == "" {
		return program, nil
	}
	err := filepath.WalkDir(t.testdata, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		below, err := filepath.Rel(t.testdata, file)
		if err != nil {
			return err
		}
		return copyFile(a, path.Join(dir, testdataName, filepath.ToSlash(below)), file, 0o644)
	})
	return program, err
}

func copyFile(a *archive, name, from string, permissions uint32) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return a.file(name, permissions, info.Size(), file)
}
