package join

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	internalcluster "github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// TestConfirm checks that ranges that a neighbour reports are accepted only after a yes.
func TestConfirm(t *testing.T) {
	answers := []agreement{{"aws", "gcp", []bound{{what: "pods"}, {what: "nodes", given: true}}, ""}}
	named := []agreement{{"aws", "gcp", []bound{{what: "pods", given: true}}, ""}}
	for name, c := range map[string]struct {
		agreed   []agreement
		yes      bool
		terminal bool
		typed    string
		says     string // empty: it continues
	}{
		"yes":                       {answers, false, true, "y\n", ""},
		"the whole word":            {answers, false, true, " YES\n", ""},
		"no":                        {answers, false, true, "n\n", "nothing was changed"},
		"nothing":                   {answers, false, true, "\n", "nothing was changed"},
		"the end of the input":      {answers, false, true, "", "nothing was changed"},
		"another word":              {answers, false, true, "yesterday\n", "nothing was changed"},
		"no terminal":               {answers, false, false, "y\n", "--yes"},
		"in a script":               {answers, true, false, "", ""},
		"all named":                 {named, false, false, "", ""},
		"nothing that wasn't there": {nil, false, false, "", ""},
	} {
		var out bytes.Buffer
		s := &cli.Session{In: strings.NewReader(c.typed), Err: &out, Interactive: c.terminal}
		err := (&installation{Session: s, Options: Options{Yes: c.yes}, agreed: c.agreed}).confirm(t.Context())
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v, expected %q", name, err, c.says)
		}
	}
	// No answer until the timeout.
	reads, writes, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writes.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("timeout")
	cancel(over)
	s := &cli.Session{In: reads, Err: io.Discard, Interactive: true}
	if err := (&installation{Session: s, agreed: answers}).confirm(ctx); !errors.Is(err, over) {
		t.Errorf("without an answer: %v", err)
	}
}

// TestLeaveTouchesNeighboursOnly leaves a cluster whose settings name a cluster that has a
// context, and isn't its neighbour.
func TestLeaveTouchesNeighboursOnly(t *testing.T) {
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "x", EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "semaphore"}},
	}}}}}}
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cli.Namespace}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: agent, Namespace: cli.Namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "semaphorectl"}}, Spec: appsv1.DaemonSetSpec{Template: template}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "semaphore", Namespace: cli.Namespace}, Data: map[string]string{"SEMAPHORE_CLUSTER_NAME": "merit"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: metav1.NamespaceSystem}})
	client.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.36.3", Minor: "36"}
	merit := &cli.Cluster{Name: "merit", Access: cli.Access{Context: "merit"}, Config: &rest.Config{}, Client: client, Dynamic: fakedynamic.NewSimpleDynamicClient(scheme.Scheme)}
	var out bytes.Buffer
	a := newInstallation(t.Context(), &cli.Session{Err: &out}, []*cli.Cluster{merit}, Options{})
	if err := a.separate(t.Context(), func(*inspect.Facts) ([]internalcluster.Name, bool) { return []internalcluster.Name{"aws"}, false }); err != nil {
		t.Fatal(err)
	}
	for _, action := range client.Actions() {
		if !slices.Contains([]string{"get", "list"}, action.GetVerb()) && action.GetSubresource() == "" && action.GetResource().Resource != "services" {
			t.Errorf("%s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
	if !strings.Contains(out.String(), "merit: it isn't joined with aws, nothing was changed") {
		t.Errorf("it says %q", out.String())
	}
}

// TestGoneIsAName rejects invalid names for --gone, and those among the arguments.
func TestGoneIsAName(t *testing.T) {
	s := &cli.Session{Err: io.Discard}
	for name, c := range map[string]struct {
		gone  string
		names []string
		says  string
	}{
		"no name":              {"../aws", []string{"aws"}, "is not a valid cluster name"},
		"itself":               {"gcp", []string{"aws", "gcp"}, "the arguments must be the other clusters"},
		"no name of the other": {"gcp", []string{"local"}, "can't be the name of a cluster"},
	} {
		if err := leaveGone(t.Context(), s, c.gone, c.names); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, expected %q", name, err, c.says)
		}
	}
}
