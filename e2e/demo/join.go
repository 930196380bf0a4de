package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// semaphorectl is the program of administrators.
const semaphorectl = "semaphorectl"

// join installs everything with one command, as a user does.
func (s *show) join(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*patience)
	defer cancel()
	root, err := tools.Root(ctx)
	if err != nil {
		return "", err
	}
	s.say("aws gets the resources of Calico (Calico itself isn't needed for this), both get CoreDNS's configuration")
	for _, file := range []string{"v3.yaml", "pools.yaml"} {
		if err := s.pair.AWS.Apply(ctx, filepath.Join(root, "policy", "testdata", file)); err != nil {
			return "", err
		}
	}
	for _, c := range s.testbed.Clusters() {
		// StartInstalledDNS runs it.
		if err := programs.InstallDNS(ctx, c); err != nil {
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
	s.fakeKubelet = programs.StartFakeKubelet(ctx, filepath.Join(s.dir, "pods"), s.binaries, s.testbed.Clusters()...)
	defer s.fakeKubelet.Stop()
	kubeconfig, err := s.testbed.Kubeconfig()
	if err != nil {
		return "", err
	}
	args := []string{"join", "--yes", "--no-probe"}
	for _, c := range s.testbed.Clusters() {
		args = append(args, "--pod-subnets", fmt.Sprintf("%s=%s %s", c.Name, c.PodSubnets[0], c.PodSubnets[1]))
	}
	if s.relay {
		args = append(args, "--relay=on")
	}
	args = append(args, "aws", "gcp")
	if s.overlap {
		s.say("pods of both clusters have the same addresses: join proposes virtual subnets, and takes none by itself")
		out, err := s.testbed.Run(ctx, s.binaries[semaphorectl], append(args, "--kubeconfig", kubeconfig)...)
		s.print("semaphorectl "+strings.Join(args, " "), out)
		if err == nil {
			return "", errors.New("join has chosen virtual subnets itself")
		}
		for _, c := range s.testbed.Clusters() {
			args = append(args, "--virtual-subnets", fmt.Sprintf("%s=%s %s", c.Name, c.VirtualSubnets[0], c.VirtualSubnets[1]))
		}
	}
	out, err := s.testbed.Run(ctx, s.binaries[semaphorectl], append(args, "--kubeconfig", kubeconfig)...)
	s.print("semaphorectl "+strings.Join(args, " "), out)
	if err != nil {
		return "", errors.Join(err, s.fakeKubelet.Err())
	}
	for _, pod := range s.pair.Pods {
		agent, err := s.fakeKubelet.Agent(pod.Node)
		if err != nil {
			return "", err
		}
		s.pair.Agents = append(s.pair.Agents, agent)
	}
	if !s.relay {
		return "one command; the programs of 3 tools run", nil
	}
	for _, c := range s.testbed.Clusters() {
		out, err := c.Kubectl(ctx, "-n", programs.Namespace, "get", "wireguardpeers")
		if err != nil {
			return "", err
		}
		s.print("kubectl --context="+c.Name+" --namespace=sys-semaphore get wireguardpeers", out)
	}
	return "one command; the programs of 3 tools run, and semaphore-relay", nil
}
