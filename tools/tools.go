// Package tools builds the programs that the tests, the demo and the linter
// run: a real Kubernetes control plane, etcd, kube-proxy, kubelet, CoreDNS,
// containerd, Prometheus, helm, golangci-lint and govulncheck. They come from modules below
// this folder, whose go.mod and go.sum pin every version, so that they can't disturb
// the dependencies of the product. The programs of a cluster are one module, kubernetes:
// they share most of their packages, and are built at once. The container runtime is
// another module.
//
// Binaries are stored in the user's cache folder, by a hash of their inputs, and are built
// again only when an input changes. Several processes may build at the same time.
package tools

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The tools that Build knows.
const (
	CNIBridge             = "bridge"
	CNIHostLocal          = "host-local"
	CNILoopback           = "loopback"
	Containerd            = "containerd"
	ContainerdShim        = "containerd-shim-runc-v2"
	CoreDNS               = "coredns"
	Ctr                   = "ctr"
	Etcd                  = "etcd"
	Etcdutl               = "etcdutl"
	GolangciLint          = "golangci-lint"
	Govulncheck           = "govulncheck"
	Helm                  = "helm"
	KubeAPIServer         = "kube-apiserver"
	KubeControllerManager = "kube-controller-manager"
	KubeProxy             = "kube-proxy"
	KubeScheduler         = "kube-scheduler"
	Kubectl               = "kubectl"
	Kubelet               = "kubelet"
	Prometheus            = "prometheus"
	Promtool              = "promtool"
)

// Flags of all builds. Without debugging data the programs take half the space, and a
// tenth less time to compile. The Makefile repeats gcflags for the demo: packages are shared
// with our programs only where the flags are the same.
const (
	ldflags = "-s -w"
	gcflags = "all=-dwarf=false"
)

// A tool is one program of one tool module.
type tool struct {
	name    string
	module  string // folder below tools
	pkg     string // import path of its main package, or its folder in the module
	version string // linker variable that takes the version, empty for none
	of      string // module whose version goes there
	tags    string // build tags, empty for none
}

// file is what go build names the tool's binary: the last part of its import path
// that isn't a major version.
func (t tool) file() string {
	name := path.Base(t.pkg)
	if major.MatchString(name) {
		name = path.Base(path.Dir(t.pkg))
	}
	return name
}

var major = regexp.MustCompile(`^v[0-9]+$`)

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
	containers := func(name, pkg string) tool { return tool{name: name, module: "containers", pkg: pkg} }
	const (
		containerd = "github.com/containerd/containerd/v2/cmd/"
		plugins    = "github.com/containernetworking/plugins/plugins/"
	)
	return []tool{
		containers(CNIBridge, plugins+"main/bridge"),
		containers(CNIHostLocal, plugins+"ipam/host-local"),
		containers(CNILoopback, plugins+"main/loopback"),
		containers(Containerd, containerd+Containerd),
		containers(ContainerdShim, containerd+ContainerdShim),
		containers(Ctr, containerd+Ctr),
		// CoreDNS with the plugins that deploy/coredns uses.
		{name: CoreDNS, module: "kubernetes", pkg: "./coredns"},
		{name: Etcd, module: "kubernetes", pkg: "go.etcd.io/etcd/server/v3"},
		{name: Etcdutl, module: "etcdutl", pkg: "go.etcd.io/etcd/etcdutl/v3"},
		{name: Helm, module: "helm", pkg: "helm.sh/helm/v4/cmd/helm"},
		{name: GolangciLint, module: "lint", pkg: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint"},
		{name: Govulncheck, module: "vuln", pkg: "golang.org/x/vuln/cmd/govulncheck"},
		kubernetes(KubeAPIServer),
		kubernetes(KubeControllerManager),
		kubernetes(KubeProxy),
		kubernetes(KubeScheduler),
		kubernetes(Kubectl),
		kubernetes(Kubelet),
		// What finds scrape targets in clouds is most of both, and neither needs it here.
		{name: Prometheus, module: "prometheus", pkg: "github.com/prometheus/prometheus/cmd/prometheus", tags: "remove_all_sd"},
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

// key names what a module's binaries depend on: the pinned modules, the module's
// own sources, the toolchain, the platform and the flags that all have.
func key(dir, toolchain string) (string, error) {
	var inputs bytes.Buffer
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".mod", ".sum"}, filepath.Ext(path)) {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		fmt.Fprintf(&inputs, "%s %d\n%s", name, len(content), content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the pinned versions: %w", err)
	}
	inputs.WriteString(toolchain + " " + ldflags + " " + gcflags)
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
