package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/deploy/tools"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
)

// semaphorectl is the program of administrators.
const semaphorectl = "semaphorectl"

// corefile is CoreDNS's configuration before the clusters are joined.
const corefile = `.:53 {
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        ttl 5
    }
    cache 5
}
`

// deployment is the Deployment of CoreDNS, by which join knows its version and account.
const deployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system, labels: {k8s-app: kube-dns}}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      containers:
        - name: coredns
          image: registry.k8s.io/coredns/coredns:v1.14.3
          args: [-conf, /etc/coredns/Corefile]
          volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
`

// join installs everything with one command, as a user does.
func (s *show) join(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	defer cancel()
	root, err := tools.Root(ctx)
	if err != nil {
		return "", err
	}
	s.say("aws gets the resources of Calico (Calico itself isn't needed for this), both get CoreDNS's configuration")
	coreDNS := filepath.Join(s.dir, "coredns.yaml")
	if err := os.WriteFile(coreDNS, []byte(deployment), 0o644); err != nil {
		return "", err
	}
	for _, file := range []string{"v3.yaml", "pools.yaml"} {
		if err := s.pair.AWS.Apply(ctx, filepath.Join(root, "policy", "testdata", file)); err != nil {
			return "", err
		}
	}
	for _, c := range s.testbed.Clusters() {
		_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		_, err = c.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Data: map[string]string{"Corefile": corefile},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		// StartDNSWith runs it.
		if err := c.Apply(ctx, coreDNS); err != nil {
			return "", err
		}
		for _, node := range c.Nodes() {
			if err := node.Masquerade(ctx); err != nil {
				return "", err
			}
		}
	}
	s.say("without kubelets, controllers of DaemonSets and Deployments, and an image, a stand-in starts the programs of")
	s.say("the pod templates on the nodes and reports which are ready. join can't use temporary pods here (--no-probe);")
	s.say("make e2e-kubelet runs the same with real kubelets")
	s.standIn = programs.StartStandIn(ctx, filepath.Join(s.dir, "pods"), s.binaries, s.testbed.Clusters()...)
	defer s.standIn.Stop()
	kubeconfig, err := s.testbed.Kubeconfig()
	if err != nil {
		return "", err
	}
	args := []string{"join", "--yes", "--no-probe"}
	for _, c := range s.testbed.Clusters() {
		args = append(args, "--pod-subnets", fmt.Sprintf("%s=%s %s", c.Name, c.PodSubnets[0], c.PodSubnets[1]))
	}
	args = append(args, "aws", "gcp")
	out, err := s.testbed.Run(ctx, s.binaries[semaphorectl], append(args, "--kubeconfig", kubeconfig)...)
	s.print("semaphorectl "+strings.Join(args, " "), out)
	if err != nil {
		return "", errors.Join(err, s.standIn.Err())
	}
	for _, pod := range s.pair.Pods {
		agent, err := s.standIn.Agent(pod.Node)
		if err != nil {
			return "", err
		}
		s.pair.Agents = append(s.pair.Agents, agent)
	}
	return "one command; the programs of 3 tools run", nil
}

// corefile writes the CoreDNS configuration of gcp, as join has left it, to a file.
func (s *show) corefile(ctx context.Context) (file string, err error) {
	m, err := s.pair.GCP.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if !strings.Contains(m.Data["Corefile"], "cluster.aws:53") {
		return "", fmt.Errorf("ConfigMap coredns of gcp has no server block for cluster.aws")
	}
	file = filepath.Join(s.dir, "Corefile")
	return file, os.WriteFile(file, []byte(m.Data["Corefile"]), 0o644)
}
