package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/join"
	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/meter"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// ourImage is the name of the image that is loaded on the nodes.
func ourImage() string { return imageOf(versions[0]) }

// joined acts like a new user: one command joins two fresh clusters, another one separates
// them.
func (l *lab) joined(t *testing.T) {
	l.startDNS(t)
	l.serveCalico(t)
	for i := range l.clusters {
		l.serveMeter(t, i)
	}
	before := l.everything(t)
	t.Run("a look changes nothing", func(t *testing.T) {
		l.ctl(t, "join", "--check", "--image", ourImage(), "aws", "gcp")
		l.same(t, before)
	})
	t.Run("all faults are reported at once", l.faults)
	t.Run("one command", func(t *testing.T) {
		started := time.Now()
		answered := make(chan time.Time, 1)
		asking := within(t, 5*time.Minute)
		go func() {
			if testbed.Wait(asking, "an answer by name", func(ctx context.Context) error { return l.byName(ctx, 0, 1) }) == nil {
				answered <- time.Now()
			}
			close(answered)
		}()
		out := l.ctl(t, "join", "--yes", "--image", ourImage(), "aws", "gcp")
		t.Logf("FIGURE semaphorectl join took %v", time.Since(started).Round(10*time.Millisecond))
		first, ok := <-answered
		if !ok {
			t.Fatal("no request by name was answered")
		}
		t.Logf("FIGURE first request by name answered %v after the command was started", first.Sub(started).Round(10*time.Millisecond))
		must(t, testbed.Wait(within(t, 3*time.Minute), "answers by name the other way", func(ctx context.Context) error { return l.byName(ctx, 1, 0) }))
		l.noSecrets(t, out)
		l.hasPools(t)
	})
	t.Run("again, nothing changes", func(t *testing.T) {
		versions := l.resourceVersions(t)
		l.ctl(t, "join", "--image", ourImage(), "aws", "gcp")
		if diff := cmp.Diff(versions, l.resourceVersions(t)); diff != "" {
			t.Errorf("changed (-before +after):\n%s", diff)
		}
	})
	t.Run("reports are read by commands in pods", l.reported)
	t.Run("pods try each other", l.verified)
	t.Run("tokens", func(t *testing.T) {
		for _, args := range [][]string{{"tokens", "aws", "gcp"}, {"tokens", "--revoke", "aws", "gcp"}} {
			had := l.handedTokens(t)
			l.noSecrets(t, l.ctl(t, args...))
			for key, token := range l.handedTokens(t) {
				if had[key] == token {
					t.Errorf("%q: %s is as it was", args, key)
				}
			}
		}
		had := l.handedTokens(t)
		out, err := l.run(t, "tokens", "--context", "aws=gcp,gcp=aws", "aws", "gcp")
		if err == nil || !strings.Contains(out, "aws: it is installed as cluster gcp") {
			t.Errorf("contexts that were taken for each other: %v", err)
		}
		if diff := cmp.Diff(had, l.handedTokens(t)); diff != "" {
			t.Error("it has written tokens nevertheless")
		}
	})
	t.Run("nothing is left", func(t *testing.T) {
		conditions := l.exports(t)
		l.ctl(t, "leave", "aws", "gcp")
		if got := conditions(); strings.Trim(got, "[]") != "" {
			t.Errorf("the conditions of an export remain: %s", got)
		}
		// As it prints.
		l.kubectl(t, 0, "delete", "customresourcedefinitions", "serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io")
		l.same(t, before)
	})
	t.Run("interrupted after each step", func(t *testing.T) { l.interrupted(t, before) })
}

// reported runs the agents' command "status" in their pods, through kubelets.
func (l *lab) reported(t *testing.T) {
	for _, c := range l.clusters {
		config := rest.CopyConfig(c.RESTConfig())
		kube.Bound(config, 1<<20)
		one := &cli.Cluster{Name: c.Name, Config: config, Client: c.Client()}
		agents, err := c.Client().CoreV1().Pods(programs.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=semaphore-wireguard"})
		must(t, err)
		if len(agents.Items) == 0 {
			t.Errorf("%s has no agents", c.Name)
		}
		for i := range agents.Items {
			pod := agents.Items[i].Name
			// The exit code is the state.
			report, err := one.Exec(within(t, time.Minute), programs.Namespace, pod, "agent", []string{"/bin/semaphore-wireguard", "status", "-o", "json"}, 1<<20)
			if !json.Valid(report) || len(report) == 0 {
				t.Errorf("%s: %s: report %q: %v", c.Name, pod, report, err)
			}
			_, err = one.Exec(within(t, time.Minute), programs.Namespace, pod, "agent", []string{"/bin/semaphore-wireguard", "status", "-o", "json"}, 10)
			if err == nil || !strings.Contains(err.Error(), "output of more than 10 bytes") {
				t.Errorf("%s: %s: a report of 10 bytes: %v", c.Name, pod, err)
			}
			if out, err := one.Exec(within(t, time.Minute), programs.Namespace, pod, "agent", []string{"/bin/none"}, 1<<20); err == nil {
				t.Errorf("%s: %s: a command that isn't there printed %q", c.Name, pod, out)
			}
		}
	}
}

// serveMeter creates a service for a cluster's meter, which other clusters mirror.
func (l *lab) serveMeter(t *testing.T, cluster int) {
	t.Helper()
	l.kubectl(t, cluster, "create", "service", "clusterip", "meter", "--tcp=80:"+fmt.Sprint(meter.HTTPPort))
	l.kubectl(t, cluster, "label", "service", "meter", "mirror.semaphore.uw.io/mirror-service=true")
	l.kubectl(t, cluster, "label", "pod", "meter", "app=meter")
}

// exports exports the service of aws, and returns what reads the conditions of the export, once
// it has some.
func (l *lab) exports(t *testing.T) (conditions func() string) {
	t.Helper()
	must(t, l.clusters[0].ApplyObjects(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": map[string]any{"name": "meter", "namespace": metav1.NamespaceDefault},
	}}))
	conditions = func() string {
		return l.kubectl(t, 0, "-n", metav1.NamespaceDefault, "get", "serviceexport", "meter", "-o", "jsonpath={.status.conditions}")
	}
	must(t, testbed.Wait(within(t, time.Minute), "the conditions of an export", func(context.Context) error {
		if got := conditions(); !strings.Contains(got, `"Valid"`) {
			return errors.New("it has " + got)
		}
		return nil
	}))
	return conditions
}

// byName sends a request to a pod of the other cluster by its service's name.
func (l *lab) byName(ctx context.Context, from, to int) error {
	target := "http://meter.default.svc.cluster." + l.clusters[to].Name + "/"
	answer, err := l.ask(ctx, from, "/get?url="+url.QueryEscape(target))
	own, wrong := netip.ParseAddr(l.meters[from].Status.PodIP)
	if err == nil && (wrong != nil || !strings.Contains(answer, "asked by "+l.clusters[from].Virtual(own).String()+":")) {
		err = errors.New("unexpected answer: " + answer)
	}
	return err
}

// run runs semaphorectl as an administrator, and returns what it printed.
func (l *lab) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	if l.tool == "" {
		var err error
		l.tool, err = programs.Build(t.Context(), "semaphorectl", l.dir)
		must(t, err)
	}
	kubeconfig, err := l.testbed.Kubeconfig()
	must(t, err)
	log := filepath.Join(t.TempDir(), "log")
	process, err := l.nodes[0].Start(sandbox.Command{
		Name: "semaphorectl", Path: l.tool, Args: args, Log: log,
		Env: []string{"KUBECONFIG=" + kubeconfig, "HOME=" + t.TempDir()},
	})
	must(t, err)
	<-process.Done()
	out := process.Log()
	t.Logf("semaphorectl %s\n%s", strings.Join(args, " "), out)
	return out, process.Err()
}

func (l *lab) ctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.run(t, args...)
	if err != nil {
		t.Fatalf("semaphorectl %q: %v\n%s", args, err, out)
	}
	return out
}

// faults causes several faults at once.
func (l *lab) faults(t *testing.T) {
	l.kubectl(t, 0, "create", "clusterrole", "semaphore-wireguard", "--verb=get", "--resource=nodes")
	defer l.kubectl(t, 0, "delete", "clusterrole", "semaphore-wireguard")
	out, err := l.run(t, "join", "--image", ourImage(), "--pod-subnets", "aws=10.4.0.0/16", "--api-server", "gcp=https://10.66.2.77:6443", "aws", "gcp")
	if err == nil {
		t.Error("joined nevertheless")
	}
	for _, want := range []string{
		"aws: ClusterRole semaphore-wireguard exists and wasn't created by semaphorectl",
		"overlap",
		"gcp: its API server: https://10.66.2.77:6443 is not reached from node aws/",
		", nothing was changed",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it doesn't say %q", want)
		}
	}
}

// noSecrets checks that no credentials are printed.
func (l *lab) noSecrets(t *testing.T, out string) {
	t.Helper()
	for key, token := range l.handedTokens(t) {
		if strings.Contains(out, token) || strings.Contains(out, "eyJ") || strings.Contains(out, "BEGIN CERT") {
			t.Errorf("%s, or another secret, is printed", key)
		}
	}
}

// handedTokens are the tokens that clusters have of each other.
func (l *lab) handedTokens(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, c := range l.clusters {
		list, err := c.Client().CoreV1().Secrets(programs.Namespace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, secret := range list.Items {
			for key, value := range secret.Data {
				if strings.HasSuffix(key, ".token") {
					found[c.Name+" "+secret.Name+" "+key] = string(value)
				}
			}
		}
	}
	if len(found) == 0 {
		t.Error("no tokens were handed over")
	}
	return found
}

// interrupted joins and leaves with an interruption after each step in turn.
func (l *lab) interrupted(t *testing.T, before []string) {
	l.eachStep(t, "join", join.Join)
	l.waitReach(t)
	l.eachStep(t, "leave", join.Leave)
	l.same(t, before)
}

// eachStep runs join or leave with an interruption after its first step, then after the next one,
// and so on until it completes.
func (l *lab) eachStep(t *testing.T, what string, do func(context.Context, *cli.Session, []*cli.Cluster, join.Options) error) {
	t.Helper()
	var clusters []*cli.Cluster
	for _, c := range l.clusters {
		clusters = append(clusters, &cli.Cluster{
			Name: c.Name, Access: cli.Access{Context: c.Name}, Server: c.APIURL(), Config: c.RESTConfig(), Client: c.Client(), Dynamic: c.Dynamic(),
		})
	}
	session := cli.NewSession(nil, io.Discard, t.Output())
	stopped := errors.New("interrupted")
	done := map[string]bool{}
	for {
		var at []string
		err := do(within(t, 5*time.Minute), session, clusters, join.Options{
			InstallOptions: join.InstallOptions{Image: ourImage()}, NoProbe: true, Yes: true,
			AfterStep: func(step string) error {
				l.mu.Lock()
				defer l.mu.Unlock()
				if done[step] {
					return nil
				}
				at = append(at, step)
				return stopped
			},
		})
		for _, step := range at {
			done[step] = true
		}
		if err == nil {
			t.Logf("%s was interrupted after %d steps", what, len(done))
			return
		}
		if !errors.Is(err, stopped) || len(at) == 0 {
			t.Fatalf("%s after %v: %v", what, done, err)
		}
	}
}

// everything returns all objects of the clusters and the network state of their nodes, as
// lines.
func (l *lab) everything(t *testing.T) []string {
	t.Helper()
	var all []string
	for i, c := range l.clusters {
		all = append(all, l.objects(t, i, false)...)
		for _, command := range []string{
			`ip -o link | sed -E "s/^[0-9]+: //; s/@.*//; s/:.*//"`, "ip -4 route show table all proto 115", "ip -6 route show table all proto 115",
			"ip rule", "ip -6 rule", "nft list tables", "ls -A /var/run/wireguard 2>/dev/null || true",
			"ls -A /var/lib/semaphore-wireguard 2>/dev/null | grep -v -e '[.]key$' || true",
		} {
			out, err := l.nodes[i].Run(t.Context(), "sh", "-c", command)
			must(t, err)
			for line := range strings.Lines(out) {
				all = append(all, c.Name+" "+command+": "+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(all)
	return all
}

// same waits until all is as it was before.
func (l *lab) same(t *testing.T, before []string) {
	t.Helper()
	diff := ""
	err := testbed.Wait(within(t, 2*time.Minute), "all to be as it was", func(context.Context) error {
		if diff = cmp.Diff(before, l.everything(t)); diff != "" {
			return errors.New("it isn't")
		}
		return nil
	})
	if err != nil {
		t.Errorf("left (-before +after):\n%s", diff)
	}
}

// passing are kinds whose objects are created and deleted by themselves.
var passing = []string{"events", "leases", "componentstatuses", "pods.metrics.k8s.io", "bindings"}

// reporting are kinds whose objects change with their pods.
var reporting = []string{"daemonsets", "deployments", "cronjobs", "poddisruptionbudgets"}

// objects are those of a cluster: names, and content where it is configuration; with
// versions those of all but what comes and goes, or records what happens.
func (l *lab) objects(t *testing.T, cluster int, versions bool) []string {
	t.Helper()
	c := l.clusters[cluster]
	lists, err := c.Client().Discovery().ServerPreferredResources()
	must(t, err)
	var all []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains(passing, r.Name) || versions && slices.Contains([]string{"pods", "nodes", "endpoints", "endpointslices", "jobs", "replicasets", "controllerrevisions", "flowschemas", "apiservices"}, r.Name) {
				continue
			}
			version, err := schema.ParseGroupVersion(list.GroupVersion)
			must(t, err)
			found, err := c.Dynamic().Resource(version.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				continue // Its CRD has just been deleted.
			}
			must(t, err)
			for _, o := range found.Items {
				line := fmt.Sprintf("%s %s %s/%s", c.Name, version.WithResource(r.Name).GroupResource(), o.GetNamespace(), o.GetName())
				switch {
				case versions && slices.Contains(reporting, r.Name):
					line += fmt.Sprintf(" generation %d", o.GetGeneration())
				case versions:
					line += " " + o.GetResourceVersion()
				case r.Name == "configmaps":
					line += fmt.Sprintf(" %q", o.Object["data"])
				case r.Name == "nodes":
					line += fmt.Sprintf(" %q %q", o.GetAnnotations(), o.GetLabels())
				}
				all = append(all, line)
			}
		}
	}
	return all
}

// resourceVersions are those of everything that the tool could write.
func (l *lab) resourceVersions(t *testing.T) []string {
	t.Helper()
	var all []string
	for i := range l.clusters {
		all = append(all, l.objects(t, i, true)...)
	}
	slices.Sort(all)
	return all
}
