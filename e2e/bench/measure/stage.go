package measure

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Stage is one of the controllers between two clusters.
type Stage struct {
	Local, Remote *testbed.Cluster
	// Program is as in releases, on a node of the local cluster, and not started.
	Program *programs.Program

	testbed *testbed.Testbed
}

// NewStage starts two clusters of these names, applies manifests to the local one,
// and prepares a program. Close must be called, but after an error.
func NewStage(ctx context.Context, program, local, remote string, manifests ...string) (s *Stage, err error) {
	binaries, err := tools.Build(ctx, os.Stderr, tools.Etcd, tools.KubeAPIServer, tools.Kubectl)
	if err != nil {
		return nil, err
	}
	tb, err := testbed.New(testbed.Config{Tools: binaries})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tb.Close())
		}
	}()
	s = &Stage{testbed: tb}
	Say("building %s", program)
	// The testbed's folder goes with it, however this process ends.
	binary, err := programs.Build(ctx, program, s.testbed.Dir(), "-ldflags=-s -w")
	if err != nil {
		return nil, err
	}
	Say("starting API servers")
	clusters, err := s.testbed.StartClusters(ctx, testbed.ClusterConfig{Name: local}, testbed.ClusterConfig{Name: remote})
	if err != nil {
		return nil, err
	}
	s.Local, s.Remote = clusters[0], clusters[1]
	if err := s.Local.Apply(ctx, manifests...); err != nil {
		return nil, err
	}
	if err := programs.Grant(ctx, program, clusters...); err != nil {
		return nil, err
	}
	node, err := s.Local.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return nil, err
	}
	s.Program, err = programs.Prepare(ctx, programs.Config{Name: program, Binary: binary, Port: 8080}, node, s.Remote)
	return s, err
}

// Close ends and removes everything.
func (s *Stage) Close() error { return s.testbed.Close() }

// Usage looks at who is busy: the program, the control planes, and this process.
func (s *Stage) Usage() (*Usage, error) {
	groups := []Group{{"ours", []int{s.Program.Process().PID()}}}
	for _, c := range []*testbed.Cluster{s.Local, s.Remote} {
		etcd, api := c.ControlPlane()
		groups = append(groups, Group{c.Name + "'s API server", []int{api}}, Group{"etcd", []int{etcd}})
	}
	return NewUsage(append(groups, Group{"the benchmark", []int{os.Getpid()}})...)
}

// Writes returns how many requests the program says that it has made to change
// something: a counter of its /metrics.
func (s *Stage) Writes(ctx context.Context, counter string) (int, error) {
	text, err := s.Program.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	return Counter(text, counter)
}

// Say reports progress.
func Say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
