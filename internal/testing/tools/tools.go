// Package tools gives tests, demo and benchmarks the programs of other projects that they
// run: a Kubernetes control plane, etcd, kube-proxy, kubelet, CoreDNS, containerd, Prometheus
// and helm. The module in the folder tools of the repository pins and builds them; this is its
// client, so that none of its dependencies is one of ours.
package tools

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The programs that Build knows.
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

// Binaries maps the name of a program to the absolute path of its binary.
type Binaries map[string]string

// Build returns the binaries of the named programs. What the cache doesn't hold is built
// first, which takes minutes; progress gets a line when a build starts, one when it ends, and
// some in between. The working directory must be inside the repository.
func Build(ctx context.Context, progress io.Writer, names ...string) (Binaries, error) {
	root, err := Root(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"run", "./build"}, names...)
	out, err := goCommand(ctx, filepath.Join(root, "tools"), progress, args...)
	if err != nil {
		return nil, fmt.Errorf("build %s: %w", strings.Join(names, ", "), err)
	}
	paths := strings.Fields(out)
	if len(paths) != len(names) {
		return nil, fmt.Errorf("build %s: %d binaries instead of %d:\n%s", strings.Join(names, ", "), len(paths), len(names), out)
	}
	binaries := make(Binaries, len(names))
	for i, name := range names {
		binaries[name] = paths[i]
	}
	return binaries, nil
}

// Root returns the folder of the repository, which the working directory must be in.
func Root(ctx context.Context) (string, error) {
	gomod, err := goCommand(ctx, "", io.Discard, "env", "GOMOD")
	if err != nil {
		return "", err
	}
	root := filepath.Dir(gomod)
	if _, err := os.Stat(filepath.Join(root, "tools", "go.mod")); err != nil {
		return "", fmt.Errorf("find the repository (run this inside it): %w", err)
	}
	return root, nil
}

// goCommand runs the go command in dir and returns its standard output, trimmed. Its standard
// error goes to progress, too.
func goCommand(ctx context.Context, dir string, progress io.Writer, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(progress, &stderr)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}
