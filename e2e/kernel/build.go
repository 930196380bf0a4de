package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Packages that are part of the machine itself.
const (
	modulePath    = "github.com/kube-semaphore/kube-semaphore"
	guestPackage  = modulePath + "/e2e/kernel/guest"
	selftestPkg   = modulePath + "/e2e/kernel/selftest"
	stripped      = "-s -w"
	testdataName  = "testdata"
	listTemplate  = "{{.ImportPath}}\t{{.Dir}}\t{{len .TestGoFiles}}\t{{len .XTestGoFiles}}"
	listSeparator = "\t"
)

// testBinary is the compiled test of one package.
type testBinary struct {
	// pkg is the import path.
	pkg string
	// file is the static executable.
	file string
	// testdata is the package's testdata folder, or empty.
	testdata string
	// run is an expression for the tests to run; empty: that of all packages.
	run string
}

// compiler builds what runs in the machine. Everything is linked statically:
// there is no C library in the machine.
type compiler struct {
	// out is the folder that executables go to.
	out string
}

// list resolves package patterns. A package without tests is an error when it
// is named, because a run that leaves it out would look as if it had passed.
func (c compiler) list(ctx context.Context, patterns ...string) ([]testBinary, error) {
	args := append([]string{"list", "-f", listTemplate}, patterns...)
	out, err := exec.CommandContext(ctx, "go", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), withStderr(err))
	}
	return parseList(string(out), strings.Contains(strings.Join(patterns, " "), "..."))
}

// choose lists the packages of arguments, each a pattern, or a pattern, a colon and
// an expression for the tests to run.
func (c compiler) choose(ctx context.Context, arguments []string) ([]testBinary, error) {
	var all []testBinary
	for _, argument := range arguments {
		pattern, run, _ := strings.Cut(argument, ":")
		found, err := c.list(ctx, pattern)
		if err != nil {
			return nil, err
		}
		for i := range found {
			found[i].run = run
		}
		all = append(all, found...)
	}
	return all, nil
}

// parseList reads the output of go list. lenient leaves packages without tests
// out instead of returning an error.
func parseList(out string, lenient bool) ([]testBinary, error) {
	var found []testBinary
	for line := range strings.Lines(out) {
		fields := strings.Split(strings.TrimSpace(line), listSeparator)
		if len(fields) != strings.Count(listTemplate, listSeparator)+1 {
			return nil, fmt.Errorf("go list printed %q", line)
		}
		if fields[2] == "0" && fields[3] == "0" {
			if lenient {
				continue
			}
			return nil, fmt.Errorf("package %s has no tests", fields[0])
		}
		test := testBinary{pkg: fields[0]}
		testdata := filepath.Join(fields[1], testdataName)
		if info, err := os.Stat(testdata); err == nil && info.IsDir() {
			test.testdata = testdata
		}
		found = append(found, test)
	}
	return found, nil
}

// test compiles the tests of one package.
func (c compiler) test(ctx context.Context, t testBinary) (testBinary, error) {
	t.file = filepath.Join(c.out, strings.ReplaceAll(t.pkg, "/", "_")+".test")
	return t, c.run(ctx, "test", "-c", "-o", t.file, t.pkg)
}

// guest compiles the program that is the machine's process 1.
func (c compiler) guest(ctx context.Context) (file string, err error) {
	file = filepath.Join(c.out, "guest")
	return file, c.run(ctx, "build", "-o", file, guestPackage)
}

func (c compiler) run(ctx context.Context, verb string, args ...string) error {
	args = append([]string{verb, "-trimpath", "-ldflags", stripped}, args...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.WaitDelay = waitDelay
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
