package tools

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeModule writes a tool module that builds in a second: a main package
// under the import path of etcd.
func fakeModule(t *testing.T) string {
	t.Helper()
	modules := t.TempDir()
	write(t, filepath.Join(modules, "kubernetes", "go.mod"), "module go.etcd.io/etcd/server/v3\n\ngo 1.26.0\n")
	write(t, filepath.Join(modules, "kubernetes", "go.sum"), "")
	write(t, filepath.Join(modules, "kubernetes", "main.go"), "package main\n\nfunc main() { println(\"one\") }\n")
	return modules
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command(path).CombinedOutput()
	if err != nil {
		t.Fatalf("run %s: %v", path, err)
	}
	return strings.TrimSpace(string(out))
}

func TestBuildOnceForEachKey(t *testing.T) {
	ctx := context.Background()
	var progress bytes.Buffer
	cfg := Config{Modules: fakeModule(t), Cache: t.TempDir(), Progress: &progress}

	first, err := Build(ctx, cfg, Etcd)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, first[Etcd]); got != "one" {
		t.Errorf("the binary prints %q, want one", got)
	}
	if !strings.Contains(progress.String(), "building etcd") {
		t.Errorf("progress doesn't report the build: %q", progress.String())
	}

	progress.Reset()
	again, err := Build(ctx, cfg, Etcd, Etcd)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("second build differs (-first +second):\n%s", diff)
	}
	if progress.Len() > 0 {
		t.Errorf("built again though nothing changed: %q", progress.String())
	}

	write(t, filepath.Join(cfg.Modules, "kubernetes", "go.mod"), "module go.etcd.io/etcd/server/v3\n\ngo 1.26.0\n\n// changed\n")
	write(t, filepath.Join(cfg.Modules, "kubernetes", "main.go"), "package main\n\nfunc main() { println(\"two\") }\n")
	changed, err := Build(ctx, cfg, Etcd)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, changed[Etcd]); got != "two" {
		t.Errorf("after a change of go.mod the binary prints %q, want two", got)
	}
	if got := output(t, first[Etcd]); got != "one" {
		t.Errorf("the earlier binary prints %q, want one: a run that uses it must not see it change", got)
	}
}

// TestBuildsAtOnceWhatIsOneModule builds a package of the module itself beside one
// of another name than its tool's.
func TestBuildsAtOnceWhatIsOneModule(t *testing.T) {
	var progress bytes.Buffer
	cfg := Config{Modules: fakeModule(t), Cache: t.TempDir(), Progress: &progress}
	own := filepath.Join(cfg.Modules, "kubernetes", "coredns", "main.go")
	write(t, own, "package main\n\nfunc main() { println(\"names\") }\n")
	binaries, err := Build(t.Context(), cfg, CoreDNS, Etcd)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{CoreDNS: "names", Etcd: "one"} {
		if got := output(t, binaries[name]); got != want || filepath.Base(binaries[name]) != name {
			t.Errorf("%s prints %q, want %q", binaries[name], got, want)
		}
	}
	if n := strings.Count(progress.String(), "building "); n != 1 {
		t.Errorf("%d builds, want one:\n%s", n, progress.String())
	}
	write(t, own, "package main\n\nfunc main() { println(\"other names\") }\n")
	if binaries, err = Build(t.Context(), cfg, CoreDNS); err != nil || output(t, binaries[CoreDNS]) != "other names" {
		t.Errorf("after a change of the module's own source the old binary is there, %v", err)
	}
}

func TestProgressCountsModulesAndPackages(t *testing.T) {
	p := &progress{}
	fmt.Fprint(p, "go: downloading example.org/a v1.0.0\ngo: downloa")
	fmt.Fprint(p, "ding example.org/b v1.0.0\n")
	if got, want := p.String(), "2 modules downloaded"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	p.building(40)
	fmt.Fprint(p, "example.org/a\nexample.org/b/c\n# example.org/d\nmain.go:1: no such thing\nexample.org/e")
	if got, want := p.String(), "2 of 40 packages compiled"; !strings.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestBuildWithTags(t *testing.T) {
	cfg := Config{Modules: fakeModule(t), Cache: t.TempDir(), Progress: io.Discard}
	write(t, filepath.Join(cfg.Modules, "kubernetes", "main.go"), "//go:build !slim\n\npackage main\n\nfunc main() { println(\"whole\") }\n")
	write(t, filepath.Join(cfg.Modules, "kubernetes", "slim.go"), "//go:build slim\n\npackage main\n\nfunc main() { println(\"slim\") }\n")
	binaries := Binaries{}
	for name, tags := range map[string]string{"whole": "", "slim": "slim"} {
		t.Run(name, func(t *testing.T) {
			etcd := tool{name: Etcd, module: "kubernetes", pkg: "go.etcd.io/etcd/server/v3", tags: tags}
			if err := buildModule(t.Context(), cfg, "kubernetes", []tool{etcd}, binaries); err != nil {
				t.Fatal(err)
			}
			if got := output(t, binaries[Etcd]); got != name {
				t.Errorf("the binary prints %q, want %s: another one's place was taken for it", got, name)
			}
		})
	}
}

func TestBuildersSideBySideBuildOnce(t *testing.T) {
	modules, cache := fakeModule(t), t.TempDir()
	var progress [4]bytes.Buffer
	var wg sync.WaitGroup
	for i := range progress {
		wg.Go(func() {
			binaries, err := Build(context.Background(), Config{Modules: modules, Cache: cache, Progress: &progress[i]}, Etcd)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(binaries[Etcd]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	builds := 0
	for i := range progress {
		builds += strings.Count(progress[i].String(), "building etcd")
	}
	if builds != 1 {
		t.Errorf("built %d times, want once", builds)
	}
	partial, err := filepath.Glob(filepath.Join(cache, ".partial-*"))
	if err != nil || len(partial) > 0 {
		t.Errorf("left behind: %v, %v", partial, err)
	}
}

func TestBuildErrorShowsTheCompilerAndLeavesNothing(t *testing.T) {
	cfg := Config{Modules: fakeModule(t), Cache: t.TempDir()}
	write(t, filepath.Join(cfg.Modules, "kubernetes", "main.go"), "package main\n\nfunc main() { undefinedThing() }\n")
	_, err := Build(context.Background(), cfg, Etcd)
	if err == nil || !strings.Contains(err.Error(), "undefinedThing") || !strings.Contains(err.Error(), "etcd") {
		t.Errorf("error %v, want one that names the tool and the compiler's complaint", err)
	}
	entries, err := os.ReadDir(cfg.Cache)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != ".kubernetes.lock" {
			t.Errorf("left in the cache: %s", entry.Name())
		}
	}
}

func TestBuildRefusesUnknownTools(t *testing.T) {
	_, err := Build(context.Background(), Config{Modules: t.TempDir(), Cache: t.TempDir()}, "etcd3", "kubelet2")
	if err == nil || !strings.Contains(err.Error(), `"etcd3"`) || !strings.Contains(err.Error(), `"kubelet2"`) {
		t.Errorf("error %v, want both names", err)
	}
}

func TestBuildGivesUpTheLockOnCancel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := lock(ctx, path); err == nil {
		t.Fatal("two holders of one lock")
	}
	unlock()
	unlock, err = lock(context.Background(), path)
	if err != nil {
		t.Fatalf("lock after unlock: %v", err)
	}
	unlock()
}

func TestModuleVersion(t *testing.T) {
	gomod := "module m\n\nrequire example.org/a v1.2.3 // indirect\n\nrequire (\n\texample.org/b v0.1.0\n)\nreplace example.org/c => example.org/c v9.0.0\n"
	for _, c := range []struct{ name, module, want string }{
		{"on a line of its own", "example.org/a", "v1.2.3"},
		{"in a block", "example.org/b", "v0.1.0"},
		{"a replacement is no requirement", "example.org/c", ""},
		{"absent", "example.org", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := moduleVersion(gomod, c.module); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestCatalogueMatchesTheModules catches a tool that its module doesn't pin.
func TestCatalogueMatchesTheModules(t *testing.T) {
	for _, tool := range catalogue() {
		gomod, err := os.ReadFile(filepath.Join(tool.module, "go.mod"))
		if err != nil {
			t.Error(err)
			continue
		}
		if strings.HasPrefix(tool.pkg, "./") {
			if _, err := os.Stat(filepath.Join(tool.module, tool.pkg, "main.go")); err != nil {
				t.Errorf("%s: %v", tool.name, err)
			}
		} else if !strings.Contains(string(gomod), tool.pkg+"\n") {
			t.Errorf("%s: %s/go.mod has no tool line for %s", tool.name, tool.module, tool.pkg)
		}
		if tool.of != "" && moduleVersion(string(gomod), tool.of) == "" {
			t.Errorf("%s: %s/go.mod requires no version of %s", tool.name, tool.module, tool.of)
		}
	}
}

// TestModulesShareVersions checks that packages which our programs, the control planes and
// promtool have in common are compiled once. With -trimpath, Go's build cache shares a package
// between modules that require the same version of it, and of all that it imports.
func TestModulesShareVersions(t *testing.T) {
	unshared := []string{ // imported by few packages
		"github.com/go-errors/errors", // of kustomize and Helm
		"github.com/mdlayher/netlink",
		"github.com/mdlayher/socket",
		"github.com/prometheus/client_golang", // promtool needs the API of 1.24
		"go.uber.org/zap",                     // of Prometheus only what receives OTLP imports it
		"k8s.io/apiextensions-apiserver",      // of v0.0.0 the control planes replace it by ours
		"k8s.io/kubectl",                      // likewise
		"sigs.k8s.io/mcs-api",                 // of the control planes only CoreDNS imports it
	}
	root, kubernetes, prometheus := "..", "kubernetes", "prometheus"
	for _, dirs := range [][2]string{{root, kubernetes}, {root, prometheus}, {kubernetes, prometheus}} {
		wanted, versions := requirements(t, dirs[0]), requirements(t, dirs[1])
		for _, module := range slices.Sorted(maps.Keys(versions)) {
			want := wanted[module]
			if got := versions[module]; want != "" && got != want && !slices.Contains(unshared, module) {
				t.Errorf("%s requires %s %s, %s requires %s: raise the older one with go get, and run go mod tidy", dirs[0], module, want, dirs[1], got)
			}
		}
	}
}

// requirements are the versions that the go.mod of a folder requires, by module.
func requirements(t *testing.T, dir string) map[string]string {
	t.Helper()
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(gomod)) {
		if fields := strings.Fields(strings.TrimPrefix(line, "require ")); len(fields) > 0 {
			if version := moduleVersion(line, fields[0]); version != "" {
				versions[fields[0]] = version
			}
		}
	}
	if len(versions) == 0 {
		t.Fatalf("%s/go.mod: no requirement found", dir)
	}
	return versions
}
