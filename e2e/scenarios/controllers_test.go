package scenarios_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// controllerFaults are faults that service mirror and policy must both withstand.
var controllerFaults = []struct {
	name string
	test func(*controllers, *testing.T)
}{
	{"our objects are changed and deleted by hand", (*controllers).testByHand},
	{"a foreign object is in the way", (*controllers).testForeign},
	{"the API refuses one object", (*controllers).testRefused},
	{"a finalizer holds an object", (*controllers).testFinalizer},
	{"a remote is unreachable", (*controllers).testUnreachable},
	{"a remote is restored from a backup", (*controllers).testRemoteRestored},
	{"the local cluster is restored from a backup", (*controllers).testLocalRestored},
	{"a remote is no longer configured", (*controllers).testUnconfigured},
	{"a remote is stale", (*controllers).testStale},
	{"a replica hands over", (*controllers).testHandOver},
	{"a leader loses the local cluster while it writes", (*controllers).testLostLeader},
	{"a flood from one remote", (*controllers).testFlood},
}

// copies are the objects that a controller creates in the local cluster, one for each origin.
type copies interface {
	// program is the name of its program.
	program() string
	// kind is the kind of these objects.
	kind() schema.GroupVersionResource
	// kinds are the resources that it writes.
	kinds() []string
	// local is the name of the object.
	local(remote, name string) string
	// put sets the address of an origin of a remote, and creates it if needed.
	put(ctx context.Context, c *testbed.Cluster, name, address string) error
	// shared does the same for an origin that loses its address when the remote is
	// stale. It returns the name of the object that has that of aws, and whether that
	// is merged with those of other remotes.
	shared(ctx context.Context, c *testbed.Cluster, name, address string) (local string, merged bool, err error)
	// bare is put with as few requests as possible.
	bare(ctx context.Context, c *testbed.Cluster, name, address string) error
	remove(ctx context.Context, c *testbed.Cluster, name string) error
	// spoil is a patch of the object that must be reverted.
	spoil() string
	// foreign is a foreign object.
	foreign(name string) *unstructured.Unstructured
	// read returns the addresses of all objects that are ours, by name.
	read(ctx context.Context, list *unstructured.UnstructuredList) (map[string][]string, error)
	// fault returns what a replica says is wrong with an origin's object.
	fault(ctx context.Context, p *programs.Program, remote, name string) (string, error)
	// removedAt returns when the objects of a remote go.
	removedAt(ctx context.Context, p *programs.Program, remote string) (*time.Time, error)
	// contact returns whether a remote is stale, and why it can't be read.
	contact(ctx context.Context, p *programs.Program, remote string) (stale bool, fault string, err error)
	// bounded returns what the status reports about a remote's bounds; bound the setting for
	// the number of its objects, and the metric that counts those beyond it.
	bounded(ctx context.Context, p *programs.Program, remote string) (said string, err error)
	bound(remote string) (setting, metric string)
}

// copied is one object that is ours.
type copied struct {
	uid, version string
	addresses    []string
}

// subject is one of the controllers under test.
type subject struct {
	copies
	*programs.Program                      // alone, without election
	base              map[string]string    // its settings
	port              int                  // and the next ones
	replicas          [2]*programs.Program // with election
}

// controllers are both of them, in gcp, which has two remotes. There are no nodes but
// the one that they run on.
type controllers struct {
	tb              *testbed.Testbed
	gcp, aws, merit *testbed.Cluster
	node            *testbed.Node
	subjects        []*subject
}

// TestControllers causes faults for service mirror and policy at the same time.
func TestControllers(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	f := &controllers{tb: testbed.Start(t, testbed.Config{})}
	ctx := within(t, 5*time.Minute)
	all, err := f.tb.StartClusters(ctx, testbed.ClusterConfig{Name: "gcp"}, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	f.gcp, f.aws, f.merit = all[0], all[1], all[2]
	must(t, f.gcp.Apply(ctx, "../../policy/testdata/v3.yaml"))
	f.node, err = f.gcp.AddNode(ctx, testbed.NodeConfig{})
	must(t, err)
	for i, c := range []copies{mirrors{f}, sets{f}} {
		must(t, programs.Grant(ctx, c.program(), all...))
		s := &subject{copies: c, port: 8080 + 10*i}
		s.Program = f.replica(t, s, "alone", 0)
		s.Env["SEMAPHORE_LEADER_ELECTION"] = "false"
		s.base = maps.Clone(s.Env)
		f.subjects = append(f.subjects, s)
	}
	for _, c := range []*testbed.Cluster{f.aws, f.merit} {
		_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: origins}}, metav1.CreateOptions{})
		must(t, err)
	}
	t.Cleanup(func() { f.soundLogs(t) })
	for _, s := range f.subjects {
		f.restart(t, s, nil)
		// What nothing happens to.
		f.has(t, s, f.merit, "still", 1)
	}
	for _, fault := range controllerFaults {
		if !t.Run(fault.name, func(t *testing.T) { fault.test(f, t) }) {
			break // the next one would start from this one's state
		}
	}
}

// origins is the namespace of all origins.
const origins = "shop"

// patient is the timeout on a busy machine: after an outage, watches retry at least every
// half minute.
const patient = 2 * time.Minute

// replica prepares another replica of a controller.
func (f *controllers) replica(t *testing.T, s *subject, name string, number int) *programs.Program {
	t.Helper()
	p, err := programs.Prepare(within(t, time.Minute), programs.Config{
		Name: s.program(), Replica: s.program() + "-" + name, Binary: program(t, s.program()), Port: s.port + number,
	}, f.node, f.aws, f.merit)
	must(t, err)
	return p
}

// restart kills a controller, if it runs, and starts it with other settings. It is ready
// when it returns.
func (f *controllers) restart(t *testing.T, s *subject, settings map[string]string) {
	t.Helper()
	if s.Process() != nil {
		s.Kill()
	}
	s.Env = maps.Clone(s.base)
	maps.Copy(s.Env, settings)
	must(t, s.Start())
	f.ready(t, s.Program)
}

func (f *controllers) ready(t *testing.T, p *programs.Program) {
	t.Helper()
	eventually(t, patient, p.Name+" to be ready", func(ctx context.Context) error {
		if !p.Process().Running() {
			t.Fatalf("%s has ended: %v\n%s", p.Name, p.Process().Err(), p.Process().Tail(20))
		}
		return p.Ready(ctx)
	})
}

// alive fails unless a controller has run without a restart and is ready.
func (s *subject) alive(t *testing.T) {
	t.Helper()
	if !s.Process().Running() {
		t.Fatalf("%s has ended: %v\n%s", s.Name, s.Process().Err(), s.Process().Tail(20))
	}
	must(t, errors.Join(s.Ready(t.Context()), s.Healthy(t.Context())))
}

// addressOf is the address number n of a cluster's pods.
func addressOf(c *testbed.Cluster, n int) string {
	a := c.PodSubnets[0].Addr().As4()
	a[2], a[3] = byte(n/250), byte(1+n%250)
	return netip.AddrFrom4(a).String()
}

// puts sets the address of an origin to number n.
func (f *controllers) puts(t *testing.T, s *subject, c *testbed.Cluster, name string, n int) {
	t.Helper()
	must(t, s.put(within(t, time.Minute), c, name, addressOf(c, n)))
}

// has is puts, and waits for the object.
func (f *controllers) has(t *testing.T, s *subject, c *testbed.Cluster, name string, n int) copied {
	t.Helper()
	f.puts(t, s, c, name, n)
	return f.comes(t, s, c, name, n)
}

func (f *controllers) observe(ctx context.Context, s *subject) (map[string]copied, error) {
	list, err := f.gcp.Dynamic().Resource(s.kind()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	addresses, err := s.read(ctx, list)
	all := map[string]copied{}
	for i := range list.Items {
		o := &list.Items[i]
		if has, ok := addresses[o.GetName()]; ok {
			all[o.GetName()] = copied{uid: string(o.GetUID()), version: o.GetResourceVersion(), addresses: has}
		}
	}
	return all, err
}

// comes waits until the object of an origin has exactly the address number n.
func (f *controllers) comes(t *testing.T, s *subject, c *testbed.Cluster, name string, n int) copied {
	t.Helper()
	return f.holds(t, s, s.local(c.Name, name), addressOf(c, n))
}

// holds waits until an object has exactly these addresses.
func (f *controllers) holds(t *testing.T, s *subject, local string, want ...string) (found copied) {
	t.Helper()
	slices.Sort(want)
	eventually(t, patient, local+" of "+s.program(), func(ctx context.Context) error {
		all, err := f.observe(ctx, s)
		if err != nil {
			return err
		}
		found = all[local]
		if found.uid == "" {
			return errors.New("not there")
		}
		if !slices.Equal(found.addresses, want) {
			return fmt.Errorf("it has %v, want %v", found.addresses, want)
		}
		return nil
	})
	return found
}

// goes waits until an origin has no object.
func (f *controllers) goes(t *testing.T, s *subject, c *testbed.Cluster, name string) {
	t.Helper()
	local := s.local(c.Name, name)
	eventually(t, patient, "the end of "+local+" of "+s.program(), func(ctx context.Context) error {
		_, err := f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace()).Get(ctx, local, metav1.GetOptions{})
		if err == nil {
			return errors.New("still there")
		}
		return ignoreNotFound(err)
	})
}

// namespace is the namespace of the objects; empty if they are cluster-scoped.
func (s *subject) namespace() string {
	if s.kind().Group == "" {
		return programs.Namespace
	}
	return ""
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// says waits until a replica says that something is wrong with an origin's object, or,
// with an empty text, that nothing is any more.
func (f *controllers) says(t *testing.T, s *subject, c *testbed.Cluster, name, want string) {
	t.Helper()
	eventually(t, patient, fmt.Sprintf("%s to say %q of %s", s.program(), want, name), func(ctx context.Context) error {
		got, err := s.fault(ctx, s.Program, c.Name, name)
		if err == nil && (want == "" && got != "" || !strings.Contains(got, want)) {
			err = fmt.Errorf("it says %q", got)
		}
		return err
	})
}

func (f *controllers) patch(t *testing.T, s *subject, local, patch string) {
	t.Helper()
	_, err := f.gcp.Dynamic().Resource(s.kind()).Namespace(s.namespace()).
		Patch(t.Context(), local, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// requests returns how many requests of some verbs the local API server has had for the
// resources that a controller writes, those of the test included; only says which
// answers count.
func (f *controllers) requests(t *testing.T, s *subject, only string, verbs ...string) (count int) {
	t.Helper()
	raw, err := f.gcp.Client().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(within(t, time.Minute))
	must(t, err)
	for line := range strings.Lines(string(raw)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(name, "apiserver_request_total{") || !strings.Contains(name, `code="`+only) {
			continue
		}
		among := func(label string, values []string) bool {
			return slices.ContainsFunc(values, func(v string) bool { return strings.Contains(name, fmt.Sprintf("%s=%q", label, v)) })
		}
		if among(",resource", s.kinds()) && among(",verb", verbs) {
			n, err := strconv.Atoi(value)
			must(t, err)
			count += n
		}
	}
	return count
}

// writes counts what has been written.
func (f *controllers) writes(t *testing.T, s *subject) int {
	t.Helper()
	return f.requests(t, s, "2", "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
}

// untouched returns what checks that no object but those named was written since.
func (f *controllers) untouched(t *testing.T, s *subject, but ...string) func(*testing.T) {
	t.Helper()
	before, err := f.observe(t.Context(), s)
	must(t, err)
	return func(t *testing.T) {
		t.Helper()
		now, err := f.observe(t.Context(), s)
		must(t, err)
		for name, o := range before {
			if n := now[name]; !slices.Contains(but, name) && (n.uid != o.uid || n.version != o.version || !slices.Equal(n.addresses, o.addresses)) {
				t.Errorf("%s: %s was %+v and is %+v", s.program(), name, o, n)
			}
		}
	}
}

// soundLogs fails when a replica has reported a data race or has panicked.
func (f *controllers) soundLogs(t *testing.T) {
	t.Helper()
	for _, s := range f.subjects {
		for _, name := range []string{"alone", "first", "second"} {
			log, err := os.ReadFile(f.tb.LogPath(s.program() + "-" + name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
			for _, bad := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
				if at := bytes.Index(log, []byte(bad)); at >= 0 {
					t.Errorf("%s-%s:\n%s", s.program(), name, log[at:min(len(log), at+4000)])
				}
			}
		}
	}
}
