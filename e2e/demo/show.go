package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// switches select what the demo shows beside the usual.
type switches struct {
	relay   bool // agents read nodes from semaphore-relay
	overlap bool // the clusters have equal pod subnets
}

// show is the state of the demo.
type show struct {
	switches
	out         io.Writer
	dir         string // of the built programs
	binaries    tools.Binaries
	testbed     *testbed.Testbed
	pair        *programs.Pair
	fakeKubelet *programs.FakeKubelet
	capture     *testbed.Capture
	dns         *programs.DNS // of gcp
	results     []result
}

// result is a line of the summary.
type result struct {
	step string
	took time.Duration
	note string
	err  error
}

// step is one step; its result goes into the summary.
type step struct {
	name string
	do   func(*show, context.Context) (note string, err error)
}

func newShow(out io.Writer, with switches) *show { return &show{switches: with, out: out} }

// run performs all steps, as far as they go, and prints the summary.
func (s *show) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var failed error
	for i, st := range steps {
		fmt.Fprintf(s.out, "\n━━ %d/%d  %s\n", i+1, len(steps), st.name)
		start := time.Now()
		note, err := st.do(s, ctx)
		s.results = append(s.results, result{st.name, time.Since(start), note, err})
		if err != nil {
			failed = fmt.Errorf("%s: %w", st.name, err)
			break
		}
	}
	s.summary()
	return failed
}

func (s *show) summary() {
	fmt.Fprintln(s.out, "\n━━ Summary")
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	for _, r := range s.results {
		mark, note := "ok", r.note
		if r.err != nil {
			mark, note = "FAILED", firstLine(r.err.Error())
		}
		fmt.Fprintf(w, "  %s\t%s\t%.1f s\t%s\n", mark, r.step, r.took.Seconds(), note)
	}
	_ = w.Flush() // to a terminal or a pipe: errors can't be reported
}

// close removes everything.
func (s *show) close() {
	var errs []error
	if s.fakeKubelet != nil {
		s.fakeKubelet.Stop()
	}
	if s.capture != nil {
		errs = append(errs, s.capture.Close())
	}
	if s.testbed != nil {
		errs = append(errs, s.testbed.Close())
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(s.out, "clean up: %v\n", err)
	}
}

// say prints what is going on.
func (s *show) say(format string, args ...any) { fmt.Fprintf(s.out, "   "+format+"\n", args...) }

// print shows a command and its output.
func (s *show) print(command, output string) {
	s.say("$ %s", command)
	for line := range strings.Lines(output) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			s.say("  %s", line)
		}
	}
}

// sh runs a command on a node and shows its output.
func (s *show) sh(ctx context.Context, node *testbed.Node, program string, args ...string) (string, error) {
	out, err := node.Run(ctx, program, args...)
	s.print(node.Name+"# "+program+" "+strings.Join(args, " "), out)
	return out, err
}

// prepare builds what is needed and starts the testbed.
func (s *show) prepare(ctx context.Context) (string, error) {
	s.say("building what the cache lacks of the control planes and our own programs")
	dir, err := os.MkdirTemp("", "kube-semaphore-demo-")
	if err != nil {
		return "", err
	}
	s.dir = dir
	// Beside each other: the one downloads while the other compiles.
	var (
		binaries tools.Binaries
		own      = map[string]string{}
	)
	group, building := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		binaries, err = tools.Build(building, s.out,
			tools.Etcd, tools.KubeAPIServer, tools.Kubectl, tools.KubeProxy, tools.CoreDNS)
		return err
	})
	group.Go(func() (err error) {
		for _, name := range []string{programs.WireGuard, programs.ServiceMirror, programs.Policy, programs.Relay, semaphorectl} {
			if own[name], err = programs.Build(building, name, dir); err != nil {
				return err
			}
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return "", err
	}
	own[programs.Engine] = filepath.Join(dir, programs.Engine) // built with the agent
	maps.Copy(binaries, own)
	s.binaries = binaries
	if s.testbed, err = testbed.New(testbed.Config{Tools: binaries, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		return "", err
	}
	s.pair, err = programs.BarePair(ctx, s.testbed, 2, func(what string) { s.say("%s", what) }, s.clusters()...)
	if err != nil {
		return "", err
	}
	s.capture, err = s.testbed.Capture()
	return "2 API servers, 4 nodes, 4 pods", err
}

// clusters returns the configuration of aws and gcp.
func (s *show) clusters() []testbed.ClusterConfig {
	aws, gcp := testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"}
	if s.overlap {
		for _, text := range []string{"10.4.0.0/16", "fd00:10:4::/48"} {
			aws.PodSubnets = append(aws.PodSubnets, netip.MustParsePrefix(text))
		}
		gcp.PodSubnets = aws.PodSubnets
		for of, texts := range map[*testbed.ClusterConfig][]string{&aws: {"100.77.0.0/16", "fd00:77::/48"}, &gcp: {"100.78.0.0/16", "fd00:78::/48"}} {
			for _, text := range texts {
				of.VirtualSubnets = append(of.VirtualSubnets, netip.MustParsePrefix(text))
			}
		}
	}
	return []testbed.ClusterConfig{aws, gcp}
}

// lookAround prints commands for exploring the running clusters.
func (s *show) lookAround() error {
	if s.pair == nil {
		return nil
	}
	fmt.Fprintln(s.out, "\n━━ The clusters are running. To look around:")
	for _, pod := range s.pair.Pods {
		for _, host := range []*testbed.Host{&pod.Node.Host, &pod.Host} {
			pid, err := host.Space().Init()
			if err != nil {
				return err
			}
			s.say("%-12s  nsenter -t %d -n -m bash", host.Name, pid)
		}
	}
	s.say("on a node:    wg show; ip route show proto 115; curl -s http://127.0.0.1:7774/status")
	for _, c := range s.testbed.Clusters() {
		s.say("API of %s:   KUBECONFIG=%s, from any node", c.Name, c.AdminKubeconfig())
	}
	s.say("logs:         %s", s.testbed.LogPath("*"))
	s.say("make demo-down removes everything")
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
