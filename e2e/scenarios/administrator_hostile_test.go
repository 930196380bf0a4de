package scenarios_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestHostileNeighbourOfAnAdministrator lets an attacker with write access to one namespace of gcp
// attack the administrator of gcp and aws, and aws, by way of semaphorectl.
func TestHostileNeighbourOfAnAdministrator(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb, clusters := startTwo(t)
	for _, c := range clusters {
		_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	aws, gcp := clusters[0], clusters[1]
	a := newAdministrator(t, tb)
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	must(t, os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\necho \"$@\" >>"+ran+"\nexit 1\n"), 0o700))
	files := filepath.Join(dir, "files")
	// run puts our git first in PATH.
	run := func(args ...string) (string, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		out, err := tb.Run(ctx, "/usr/bin/env", append([]string{"PATH=" + dir + ":" + os.Getenv("PATH"), a.binary, "--kubeconfig", a.kubeconfig}, args...)...)
		if exit, is := errors.AsType[*exec.ExitError](err); is {
			return out, exit.ExitCode()
		}
		must(t, err)
		return out, 0
	}
	const image = "registry.example/kube-semaphore:v1"
	commands := map[string][]string{
		"check":  {"join", "--check", "--no-probe", "--image", image, "aws", "gcp"},
		"join":   {"join", "--yes", "--no-probe", "--image", image, "--timeout", "20s", "aws", "gcp"},
		"files":  {"join", "--output", "yaml", "--directory", files, "--image", image, "aws", "gcp"},
		"tokens": {"tokens", "aws", "gcp"},
		"leave":  {"leave", "gcp"},
		"pair":   {"leave", "aws", "gcp"},
	}

	for name, remotes := range map[string]string{
		"a command":             "a@127.0.0.1:b/c.git?ref=--upload-pack=id/../../x",
		"a path":                "x/../../aws",
		"YAML":                  "x\nresources: [../../aws]",
		"a zone of its own":     "local",
		"a zone that is there":  "global",
		"escapes of a terminal": "x\x1b[2Jy",
		"a label's end":         "x)y",
	} {
		t.Run(name, func(t *testing.T) {
			installed(t, gcp, map[string]string{"SEMAPHORE_CLUSTER_NAME": "gcp", "SEMAPHORE_REMOTES": remotes})
			before := everything(t, clusters)
			for command, args := range commands {
				out, code := run(args...)
				if code == 0 || !strings.Contains(out, "gcp") || !strings.Contains(out, "ConfigMap sys-semaphore/semaphore: SEMAPHORE_REMOTES: ") {
					t.Errorf("%s: exit code %d:\n%s", command, code, out)
				}
				if strings.ContainsAny(strings.ReplaceAll(out, "\n", ""), "\x1b\x07\r") {
					t.Errorf("%s: the terminal gets %q", command, out)
				}
			}
			if did, err := os.ReadFile(ran); err == nil {
				t.Errorf("the administrator has run git %s", did)
				must(t, os.Remove(ran))
			}
			if _, err := os.Stat(files); err == nil {
				t.Error("files were written")
				must(t, os.RemoveAll(files))
			}
			if diff := cmp.Diff(before, everything(t, clusters)); diff != "" {
				t.Errorf("something has changed (-before +after):\n%s", diff)
			}
		})
	}

	t.Run("its own bounds", func(t *testing.T) {
		installed(t, gcp, map[string]string{"SEMAPHORE_CLUSTER_NAME": "gcp"})
		said := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}, Data: map[string]string{"config.conf": "clusterCIDR: 8.0.0.0/7,10.4.0.0/16,fd00:10:4::/48\n"}}
		_, err := gcp.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(t.Context(), &said, metav1.CreateOptions{})
		must(t, err)
		before := everything(t, clusters)
		// The first time.
		for _, command := range []string{"check", "join", "files"} {
			if out, code := run(commands[command]...); code == 0 || !strings.Contains(out, "gcp: it reports pods in 8.0.0.0/7,10.4.0.0/16,fd00:10:4::/48: ") || !strings.Contains(out, "--pod-subnets gcp=") {
				t.Errorf("%s: exit code %d:\n%s", command, code, out)
			}
		}
		// With pod ranges of the administrator.
		named := []string{"join", "--no-probe", "--image", image, "--pod-subnets", "gcp=10.4.0.0/16", "--pod-subnets", "aws=10.2.0.0/16", "aws", "gcp"}
		if out, code := run(named...); code != 64 || !strings.Contains(out, "  pods in 10.4.0.0/16 (as you specified)\n  nodes in 10.66.0.0/16,fd00:66::/64 (as it reports)\n") || !strings.Contains(out, "--yes") {
			t.Errorf("without a terminal: exit code %d:\n%s", code, out)
		}
		if diff := cmp.Diff(before, everything(t, clusters)); diff != "" {
			t.Errorf("something has changed (-before +after):\n%s", diff)
		}
		// With existing bounds.
		installed(t, aws, map[string]string{
			"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp",
			"SEMAPHORE_REMOTE_GCP_POD_SUBNETS": "10.4.0.0/16", "SEMAPHORE_REMOTE_GCP_NODE_SUBNETS": "10.66.0.0/17",
		})
		out, code := run(append(slices.Clone(commands["files"]), "--pod-subnets", "aws=10.2.0.0/16")...)
		content, err := os.ReadFile(filepath.Join(files, "aws", "values.yaml"))
		if code != 0 || err != nil || !strings.Contains(out, "it accepts pods of gcp only in 10.4.0.0/16, and gcp has some in 8.0.0.0/7") {
			t.Errorf("exit code %d, %v:\n%s", code, err, out)
		}
		for _, want := range []string{"    podSubnets:\n    - 10.4.0.0/16\n", "    nodeSubnets:\n    - 10.66.0.0/17\n"} {
			if !strings.Contains(string(content), want) {
				t.Errorf("no %q in what aws gets", want)
			}
		}
	})
}

// installed creates a minimal installation for semaphorectl: a DaemonSet with these settings.
func installed(t *testing.T, c *testbed.Cluster, settings map[string]string) {
	t.Helper()
	_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: programs.Namespace,
		Labels: map[string]string{"app.kubernetes.io/managed-by": "semaphorectl", "pod-security.kubernetes.io/enforce": "privileged"}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	maps := c.Client().CoreV1().ConfigMaps(programs.Namespace)
	err = maps.Delete(t.Context(), "semaphore", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	_, err = maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "semaphore"}, Data: settings}, metav1.CreateOptions{})
	must(t, err)
	labels := map[string]string{"app.kubernetes.io/name": programs.WireGuard, "app.kubernetes.io/managed-by": "semaphorectl"}
	pods := template(labels)
	pods.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "semaphore"}}}}
	_, err = c.Client().AppsV1().DaemonSets(programs.Namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: programs.WireGuard, Labels: labels},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pods},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}
