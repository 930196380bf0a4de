// Package tools builds the programs that the tests, the demo and the linter
// run: a real Kubernetes control plane, etcd, kube-proxy, CoreDNS, promtool,
// golangci-lint and govulncheck. Each group has a module of its own below this folder, whose
// go.mod and go.sum pin every version, so that they can't disturb the
// dependencies of the product.
//
// Binaries live in the user's cache folder, keyed by what went into them, and
// are built once for each change of that. Two builders side by side are safe.
package tools

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The tools that Build knows.
const (
	CoreDNS               = "coredns"
	Etcd                  = "etcd"
	GolangciLint          = "golangci-lint"
	Govulncheck           = "govulncheck"
	KubeAPIServer         = "kube-apiserver"
	KubeControllerManager = "kube-controller-manager"
	KubeProxy             = "kube-proxy"
	Kubectl               = "kubectl"
	Promtool              = "promtool"
)

// ldflags strips what nobody debugs: it halves the size and the link time.
const ldflags = "-s -w"

// A tool is one program of one tool module.
type tool struct {
	name    string
	module  string // folder below e2e/tools
	pkg     string // import path of its main package
	version string // linker variable that takes the version, empty for none
	of      string // module whose version goes there
	tags    string // build tags, empty for none
}

// folder is the name of the tool's folder in the cache, sum being what key
// returned.
func (t tool) folder(sum string) string {
	if t.tags != "" {
		sum += "-" + t.tags
	}
	return t.name + "-" + sum
}

func catalogue() []tool {
	kubernetes := func(name string) tool {
		return tool{
			name:    name,
			module:  "kubernetes",
			pkg:     "k8s.io/kubernetes/cmd/" + name,
			version: "k8s.io/component-base/version.gitVersion",
			of:      "k8s.io/kubernetes",
		}
	}
	return []tool{
		{name: CoreDNS, module: "coredns", pkg: "github.com/coredns/coredns"},
		{name: Etcd, module: "etcd", pkg: "go.etcd.io/etcd/server/v3"},
		{name: GolangciLint, module: "lint", pkg: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"},
		{name: Govulncheck, module: "vuln", pkg: "golang.org/x/vuln/cmd/govulncheck"},
		kubernetes(KubeAPIServer),
		kubernetes(KubeControllerManager),
		kubernetes(KubeProxy),
		kubernetes(Kubectl),
		// What finds scrape targets in clouds is most of promtool, and checking
		// rules needs none of it.
		{name: Promtool, module: "prometheus", pkg: "github.com/prometheus/prometheus/cmd/promtool", tags: "remove_all_sd"},
	}
}

// Names lists the tools that Build knows, sorted.
func Names() []string {
	var names []string
	for _, t := range catalogue() {
		names = append(names, t.name)
	}
	slices.Sort(names)
	return names
}

// Binaries maps the name of a tool to the absolute path of its binary.
type Binaries map[string]string

// choose resolves names to tools, grouped by module, both in the order in
// which they are first named.
func choose(names []string) (modules []string, byModule map[string][]tool, err error) {
	byModule = make(map[string][]tool)
	all := catalogue()
	var errs []error
	for _, name := range names {
		i := slices.IndexFunc(all, func(t tool) bool { return t.name == name })
		if i < 0 {
			errs = append(errs, fmt.Errorf("unknown tool %q, there are %s", name, strings.Join(Names(), ", ")))
			continue
		}
		t := all[i]
		if !slices.Contains(modules, t.module) {
			modules = append(modules, t.module)
		}
		if !slices.Contains(byModule[t.module], t) {
			byModule[t.module] = append(byModule[t.module], t)
		}
	}
	return modules, byModule, errors.Join(errs...)
}

// key names what a module's binaries depend on: the pinned modules, the
// toolchain, the platform and the flags that all have.
func key(dir, toolchain string) (string, error) {
	var inputs bytes.Buffer
	for _, name := range []string{"go.mod", "go.sum"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("read the pinned versions: %w", err)
		}
		inputs.WriteString(name + " " + strconv.Itoa(len(content)) + "\n")
		inputs.Write(content)
	}
	inputs.WriteString(toolchain + " " + ldflags)
	sum := sha256.Sum256(inputs.Bytes())
	return hex.EncodeToString(sum[:8]), nil
}

// moduleVersion finds the version of a required module in the text of a
// go.mod, or returns the empty string.
func moduleVersion(gomod, module string) string {
	for line := range strings.Lines(gomod) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "require" {
			fields = fields[1:]
		}
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1]
		}
	}
	return ""
}
