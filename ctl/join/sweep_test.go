package join

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	internalcluster "github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// TestLeaveSweeps deletes what a killed doctor has left, and prints why it can't.
func TestLeaveSweeps(t *testing.T) {
	left := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "semaphorectl-x", Namespace: probe.Namespace, Labels: map[string]string{
		manifests.ManagedLabel: manifests.Manager, "semaphore.uw.io/temporary": "true",
	}}}
	for name, refused := range map[string]error{"deleted": nil, "refused": errors.New("the database is full")} {
		client := fake.NewClientset(left.DeepCopy())
		if refused != nil {
			client.PrependReactor("delete", "services", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
		}
		f := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
		f.Installed.Settings = inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp,merit", "SEMAPHORE_REMOTE_MERIT_POD_SUBNETS": "10.6.0.0/16"}
		f.Installed.Image, f.Installed.Tools = "ours", []string{manifests.WireGuard}
		var out bytes.Buffer
		c := &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Client: client}
		a := newInstallationOf(&cli.Session{Err: &out}, c, f)
		// It ends at the first step, whose result is of no interest here.
		stop := errors.New("stop")
		a.AfterStep = func(string) error { return stop }
		if err := a.leaveSome(t.Context(), 0, c, plan(f, []internalcluster.Name{"gcp"})); err == nil {
			t.Errorf("%s: leave hasn't ended", name)
		}
		_, err := client.CoreV1().Services(probe.Namespace).Get(t.Context(), left.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) != (refused == nil) || strings.Contains(out.String(), "the database is full") != (refused != nil) {
			t.Errorf("%s: %v; it says %q", name, err, out.String())
		}
	}
}

func newInstallationOf(s *cli.Session, c *cli.Cluster, f *inspect.Facts) *installation {
	a := &installation{Session: s, clusters: []*cli.Cluster{c}, facts: []*inspect.Facts{f}, settings: make([]inspect.Settings, 1), wanted: make([]*manifests.Cluster, 1)}
	a.objects, a.releases = append(a.objects, nil), map[string]*installed{c.Name: {c: c}}
	return a
}
