package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

func TestOptions(t *testing.T) {
	opts, err := parseOptions([]string{"-v", "-run", "TestX", "./tunnel", "./routes"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"./tunnel", "./routes"}, opts.packages); diff != "" || !opts.verbose || opts.run != "TestX" {
		t.Errorf("options %+v", opts)
	}
	var usage bytes.Buffer
	if _, err := parseOptions(nil, &usage); err == nil || !strings.Contains(usage.String(), "-test-timeout") {
		t.Errorf("no packages: error %v, usage %q", err, usage.String())
	}
	if _, err := parseOptions([]string{"-help"}, &usage); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-help: error %v", err)
	}
}

func TestKernelParametersAreAppended(t *testing.T) {
	opts, err := parseOptions([]string{"-append", "ipv6.disable=1", "./tunnel"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	args := machine{parameters: opts.parameters}.args("console", "report")
	line := args[slices.Index(args, "-append")+1]
	if words := strings.Fields(line); words[len(words)-1] != "ipv6.disable=1" || !slices.Contains(words, "oops=panic") {
		t.Errorf("kernel command line %q", line)
	}
}

func TestPackagesAreListed(t *testing.T) {
	data := t.TempDir()
	write(t, filepath.Join(data, testdataName, "f"), nil)
	out := "m/a\t" + data + "\t2\t0\nm/b\t/gone\t0\t1\nm/c\t/gone\t0\t0\n"
	got, err := parseList(out, true)
	if err != nil {
		t.Fatal(err)
	}
	want := []testBinary{{pkg: "m/a", testdata: filepath.Join(data, testdataName)}, {pkg: "m/b"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(testBinary{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := parseList(out, false); err == nil || !strings.Contains(err.Error(), "m/c has no tests") {
		t.Errorf("a named package without tests: error %v", err)
	}
	if _, err := parseList("nonsense\n", false); err == nil {
		t.Error("nonsense is a list")
	}
}

func TestListOfPackagesThatDoNotExist(t *testing.T) {
	_, err := compiler{}.list(context.Background(), "./gone")
	if err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("error %v", err)
	}
}

func TestChooseTakesAnExpressionForEachPackage(t *testing.T) {
	found, err := compiler{}.choose(t.Context(), []string{"./wire", ".:TestA|TestB"})
	if err != nil {
		t.Fatal(err)
	}
	const here = modulePath + "/e2e/kernel"
	want := []testBinary{{pkg: here + "/wire"}, {pkg: here, run: "TestA|TestB"}}
	if diff := cmp.Diff(want, found, cmp.AllowUnexported(testBinary{})); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}

func TestImageHoldsWhatItsPlanNames(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "guest"), []byte("guest"))
	write(t, filepath.Join(dir, "t.test"), []byte("binary"))
	write(t, filepath.Join(dir, "testdata", "deep", "f"), []byte("data"))
	i := image{
		guest:   filepath.Join(dir, "guest"),
		modules: []module{{"udp_tunnel", []byte("m1")}, {"wireguard", []byte("m2")}},
		tests: []testBinary{
			{pkg: selftestPkg, file: filepath.Join(dir, "t.test")},
			{pkg: "m/tunnel", file: filepath.Join(dir, "t.test"), testdata: filepath.Join(dir, "testdata")},
			{pkg: "m/routes", file: filepath.Join(dir, "t.test"), run: "TestY"},
		},
		runExpr: "TestX", timeout: time.Minute, interval: time.Second,
	}
	file := filepath.Join(dir, "initrd")
	if err := writeImage(file, i); err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, e := range readArchive(t, packed) {
		content["/"+e.Name] = e.Content
	}
	var plan wire.Plan
	if err := json.Unmarshal([]byte(content[wire.PlanPath]), &plan); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/lib/modules/udp_tunnel.ko", "/lib/modules/wireguard.ko"}, plan.Modules); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	if content["/init"] != "guest" || content[plan.Modules[1]] != "m2" || content["/var/run"] != "/run" {
		t.Errorf("init %q, module %q, /var/run %q", content["/init"], content[plan.Modules[1]], content["/var/run"])
	}
	for n, p := range plan.Programs {
		if content[p.Path] != "binary" || filepath.Dir(p.Path) != p.Dir || p.Timeout <= i.timeout {
			t.Errorf("program %+v", p)
		}
		args := strings.Join(p.Args, " ")
		// The machine's own test runs whole, whatever is asked of the others.
		if strings.Contains(args, "-test.run=TestX") != (n == 1) || strings.Contains(args, "-test.run=TestY") != (n == 2) || p.Required != (n == 0) {
			t.Errorf("program %d: args %s, required %v", n, args, p.Required)
		}
	}
	if got := content["/tests/m/tunnel/testdata/deep/f"]; got != "data" {
		t.Errorf("testdata %q", got)
	}
}

func TestImageWithoutItsPartsIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := writeImage(filepath.Join(dir, "initrd"), image{guest: filepath.Join(dir, "gone")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}

func TestKernelLogIsShownWhenItSaysSomething(t *testing.T) {
	for name, test := range map[string]struct {
		log   string
		wrong bool
		want  bool
	}{
		"all is well":     {"loading\r\n", false, false},
		"tests failed":    {"loading\r\n", true, true},
		"kernel warns":    {"WARNING: CPU: 0 PID: 1 at net/core\r\n", false, true},
		"kernel has bugs": {"BUG: sleeping function\r\n", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			showConsole(&out, test.log, test.wrong)
			if shown := strings.Contains(out.String(), strings.TrimSpace(test.log)); shown != test.want {
				t.Errorf("shown: %v, want %v", shown, test.want)
			}
			if strings.Contains(out.String(), "\r") {
				t.Error("carriage returns are left in")
			}
		})
	}
}

func TestShellWordsSurviveAShell(t *testing.T) {
	got := shellWords([]string{"-append", "a b", "it's", "plain=1"})
	if want := `-append 'a b' 'it'\''s' plain=1`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
}
