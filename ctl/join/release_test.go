package join

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	releasecommon "helm.sh/helm/v4/pkg/release/common"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

func sample() *manifests.Cluster {
	return &manifests.Cluster{Name: "aws", Tools: manifests.Tools(), Image: "i:1", Settings: map[string]string{"SEMAPHORE_LOG_LEVEL": "debug"}}
}

// TestAdopted records an installation without Helm, and reads it again.
func TestAdopted(t *testing.T) {
	r := &installed{c: &cli.Cluster{Name: "aws", Client: fake.NewClientset()}}
	if err := r.read(t.Context()); err != nil || r.last != nil {
		t.Fatalf("%v, %v", r.last, err)
	}
	values, err := sample().Values()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.adopt(t.Context(), values); err != nil {
		t.Fatal(err)
	}
	again := &installed{c: r.c}
	if err := again.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again.last.ApplyMethod != "ssa" || !strings.Contains(again.last.Manifest, "semaphore-wireguard") {
		t.Errorf("%+v", again.last.Info)
	}
	made, err := manifests.Dry(values, true)
	if err != nil {
		t.Fatal(err)
	}
	if !again.is(made) {
		t.Error("the same values render to something else")
	}
	again.last.Info.Status = releasecommon.StatusFailed
	if again.is(made) {
		t.Error("it counts as installed though it has failed")
	}
	again.last.Info.Status, values["cluster"] = releasecommon.StatusDeployed, "gcp"
	if made, err = manifests.Dry(values, true); err != nil || again.is(made) {
		t.Errorf("another value makes no difference, or %v", err)
	}
}

// recorded returns a release of which an installation without Helm is the only revision.
func recorded(t *testing.T) *installed {
	t.Helper()
	r := &installed{c: &cli.Cluster{Name: "aws", Client: fake.NewClientset()}}
	values, err := sample().Values()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.adopt(t.Context(), values); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestSettle continues what was interrupted, but not what another client may still do.
func TestSettle(t *testing.T) {
	r := recorded(t)
	for name, c := range map[string]struct {
		status releasecommon.Status
		by     string
		ago    time.Duration
		want   string
	}{
		"deployed":          {releasecommon.StatusDeployed, "", 0, ""},
		"ours":              {releasecommon.StatusPendingUpgrade, manifests.Manager, 0, ""},
		"ours, uninstalled": {releasecommon.StatusUninstalling, manifests.Manager, 0, ""},
		"a rollback":        {releasecommon.StatusPendingRollback, manifests.Manager, time.Minute, "wait until Helm has finished"},
		"of helm":           {releasecommon.StatusPendingInstall, "", time.Minute, "wait until Helm has finished"},
		"of helm, long ago": {releasecommon.StatusPendingInstall, "", time.Hour, ""},
	} {
		r.last.Info.Status, r.last.Chart.Metadata.Annotations, r.last.Info.LastDeployed = c.status, map[string]string{byAnnotation: c.by}, time.Now().Add(-c.ago)
		err := r.settle(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && c.status != releasecommon.StatusDeployed && r.last.Info.Status != releasecommon.StatusFailed {
			t.Errorf("%s: it is %s", name, r.last.Info.Status)
		}
	}
}

// TestHostileRevisions reads revisions that would need too much memory.
func TestHostileRevisions(t *testing.T) {
	packed := func(text []byte) corev1.Secret {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "sh.helm.release.v1.semaphore.v1", Namespace: cli.Namespace, Labels: map[string]string{"owner": "helm", "name": "semaphore"}},
			Data: map[string][]byte{"release": []byte(base64.StdEncoding.EncodeToString(b.Bytes()))}}
	}
	for name, text := range map[string][]byte{
		"zeros": bytes.Repeat([]byte(" "), maxRevisions+1),
		"lists": []byte(`{"config":{"a":[` + strings.Repeat("{},", maxRevisions>>11) + `{}]}}`),
		"deep":  bytes.Repeat([]byte("["), 10_000),
	} {
		secret := packed(text)
		err := (&installed{c: &cli.Cluster{Name: "aws", Client: fake.NewClientset(&secret)}}).read(t.Context())
		if err == nil || !strings.Contains(err.Error(), "read the Helm release semaphore") || len(err.Error()) > 400 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, text := range map[string]string{"nothing": "{}", "no chart": `{"info":{},"version":7}`} {
		secret := packed([]byte(text))
		if err := (&installed{c: &cli.Cluster{Name: "aws", Client: fake.NewClientset(&secret)}}).read(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestRunning stops after each phase, and ends there if it doesn't proceed, or with an error.
func TestRunning(t *testing.T) {
	failed := errors.New("failed")
	for phases := range 3 {
		for proceeds := range phases + 1 {
			for _, end := range []error{nil, failed} {
				at, ended := 0, error(nil)
				r := run(func(reached func() error) error {
					for range phases {
						at++
						ended = reached()
						if ended != nil {
							return ended
						}
					}
					return end
				})
				err := <-r.reached
				for range proceeds {
					if err != nil {
						t.Fatalf("phase %d of %d: %v", at, phases, err)
					}
					err = r.advance()
				}
				if want := proceeds == phases; want && !errors.Is(err, end) || !want && err != nil || at != min(proceeds+1, phases) {
					t.Errorf("%d of %d phases: %v after %d, at its end %v", proceeds, phases, err, at, end)
				}
				r.end()
				if stopped := proceeds < phases; errors.Is(ended, errStopped) != stopped {
					t.Errorf("%d of %d phases: it ended with %v", proceeds, phases, ended)
				}
			}
		}
	}
}

// TestTaken makes the fields of earlier installations those of Helm, unless it has some already.
func TestTaken(t *testing.T) {
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, subresource, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, APIVersion: "v1", Subresource: subresource, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	scale, other := entry("kubectl", update, "scale", `{"f:a":{}}`), entry("kubectl-edit", update, "", `{"f:b":{}}`)
	for name, c := range map[string]struct {
		have []metav1.ManagedFieldsEntry
		want string
	}{
		"of semaphorectl": {[]metav1.ManagedFieldsEntry{entry("semaphorectl", apply, "", `{"f:c":{}}`), scale, other}, "helm Apply {\"f:c\":{}}, kubectl Update scale {\"f:a\":{}}, kubectl-edit Update {\"f:b\":{}}"},
		"of kubectl":      {[]metav1.ManagedFieldsEntry{entry("kubectl-client-side-apply", update, "", `{"f:c":{}}`), entry("kubectl", apply, "", `{"f:d":{}}`)}, "helm Apply {\"f:c\":{},\"f:d\":{}}"},
		"of Helm, too":    {[]metav1.ManagedFieldsEntry{entry("kubectl", apply, "", `{"f:c":{}}`), entry("helm", apply, "", `{"f:c":{}}`)}, ""},
		"of others":       {[]metav1.ManagedFieldsEntry{scale, other}, ""},
	} {
		var o unstructured.Unstructured
		o.SetManagedFields(c.have)
		o.SetResourceVersion("7")
		patch, err := taken(&o)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if patch != nil {
			var steps []struct{ Value json.RawMessage }
			var fields []metav1.ManagedFieldsEntry
			if err := json.Unmarshal(patch, &steps); err != nil || string(steps[1].Value) != `"7"` || json.Unmarshal(steps[0].Value, &fields) != nil {
				t.Fatalf("%s: %s, %v", name, patch, err)
			}
			for _, e := range fields {
				got = append(got, strings.Join(strings.Fields(e.Manager+" "+string(e.Operation)+" "+e.Subresource+" "+e.FieldsV1.GetRawString()), " "))
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestOwned prints the values that lack in a cluster that something else applies, and none when they are set.
func TestOwned(t *testing.T) {
	s, out := printed()
	aws, gcp := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2"), healthy(t, "gcp", "10.4.0.0/16", "10.104.0.0/16", "10.66.2.2")
	a := &installation{Session: s, facts: []*inspect.Facts{aws, gcp}, settings: make([]inspect.Settings, 2), wanted: make([]*manifests.Cluster, 2), taken: make([]map[int]bool, 2), objects: make([][]*unstructured.Unstructured, 2)}
	a.Image = "i:2"
	aws.Installed = inspect.Installed{Owner: "Argo CD", Tools: []string{manifests.WireGuard}, Image: "i:1", Settings: inspect.Settings{"SEMAPHORE_CLUSTER_NAME": "aws", "HTTPS_PROXY": "http://p"}}
	a.want()
	only(t, "without gcp", a.owned(t.Context(), 0), "it is installed by Argo CD, which would set changes back: set the values above there")
	for want, has := range map[string]bool{"  remotes:\n    gcp:\n": true, "wgListenPort: 51840": true, "image": false, "serviceMirror": false, "variables": false} {
		if strings.Contains(out.String(), want) != has {
			t.Errorf("%q: expected %v in\n%s", want, has, out)
		}
	}
	if faults := a.owned(t.Context(), 1); len(faults) > 0 {
		t.Errorf("gcp: %v", faults)
	}
	aws.Installed.Settings = a.settings[0]
	a.want()
	only(t, "with gcp", a.owned(t.Context(), 0), "")

	// Values that are chosen by what is found in a cluster: only objects show that they are set.
	roles, bindings := rbacv1.SchemeGroupVersion.WithResource("clusterroles"), rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{{GroupVersion: rbacv1.SchemeGroupVersion.String(), APIResources: []metav1.APIResource{{Name: roles.Resource, Kind: "ClusterRole"}, {Name: bindings.Resource, Kind: "ClusterRoleBinding"}}}}
	untyped := fakedynamic.NewSimpleDynamicClient(scheme.Scheme)
	a.clusters = []*cli.Cluster{{Name: "aws", Client: client, Dynamic: untyped}, {Name: "gcp"}}
	aws.PodPrefixes = "calico"
	a.want()
	var err error
	if a.objects[0], err = a.wanted[0].Render(); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	faults := a.owned(t.Context(), 0)
	only(t, "without rights to read blocks", faults, "it is installed by Argo CD, and has no objects that the values above make")
	if !faults[0].warning { // It may have them under other names.
		t.Error("it can't be joined")
	}
	if !strings.Contains(out.String(), "podPrefixes: calico") {
		t.Errorf("podPrefixes isn't in\n%s", out)
	}
	for _, o := range a.objects[0] {
		if o.GetName() == "semaphore-wireguard-pods" {
			resource := map[string]schema.GroupVersionResource{"ClusterRole": roles, "ClusterRoleBinding": bindings}[o.GetKind()]
			if _, err := untyped.Resource(resource).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	only(t, "with rights to read blocks", a.owned(t.Context(), 0), "")
	aws.PodPrefixes, a.objects[0] = "", nil
	a.Files, aws.Installed.Settings = true, nil
	a.want()
	only(t, "for files", a.owned(t.Context(), 0), "")
}

// TestMade: each revision since the last completed one may have created objects.
func TestMade(t *testing.T) {
	r := recorded(t)
	for _, c := range []struct {
		version int
		status  releasecommon.Status
		want    int
	}{
		{2, releasecommon.StatusFailed, 2}, {3, releasecommon.StatusFailed, 3}, {4, releasecommon.StatusDeployed, 1}, {5, releasecommon.StatusPendingUpgrade, 2},
		{6, releasecommon.StatusSuperseded, 1}, {7, releasecommon.StatusFailed, 2}, // a rollback that has failed leaves none deployed
	} {
		next := *r.last
		info := *r.last.Info
		next.Version, next.Info = c.version, &info
		next.Info.Status = c.status
		if err := r.storage(t.Context()).Create(&next); err != nil {
			t.Fatal(err)
		}
		if made, err := r.made(t.Context()); err != nil || len(made) != c.want {
			t.Errorf("with revision %d: %d manifests, expected %d (%v)", c.version, len(made), c.want, err)
		}
	}
}

// TestLeftovers deletes what a release no longer has: not an IP pool that it has in another API of Calico, not
// kinds that the cluster doesn't serve, and it fails if an object can't be read.
func TestLeftovers(t *testing.T) {
	const gone, broken, kept, left = "gone", "broken", "kept", "left"
	var deleted []string
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		name := path.Base(r.URL.Path)
		switch {
		case r.Method == http.MethodDelete:
			mu.Lock()
			defer mu.Unlock()
			deleted = append(deleted, path.Base(path.Dir(r.URL.Path))+" "+name)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		case name == gone:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		case name == broken:
			w.WriteHeader(http.StatusInternalServerError)
		default:
			annotations := "{}"
			if name == kept {
				annotations = `{"helm.sh/resource-policy":"keep"}`
			}
			_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"uid":"u","annotations":%s}}`, name, annotations)
		}
	}))
	defer server.Close()
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}}},
		{GroupVersion: "crd.projectcalico.org/v1", APIResources: []metav1.APIResource{{Name: "ippools", Kind: "IPPool"}}},
		{GroupVersion: "projectcalico.org/v3", APIResources: []metav1.APIResource{{Name: "ippools", Kind: "IPPool"}}},
	}
	object := func(api, kind string, names ...string) (text string) {
		for _, name := range names {
			text += fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n", api, kind, name)
		}
		return text
	}
	r := &installed{c: &cli.Cluster{Name: "aws", Client: client, Config: &rest.Config{Host: server.URL}}}
	for name, c := range map[string]struct{ made, stay, want, err string }{
		"all":                 {object("v1", "ConfigMap", left, gone, kept), "", "configmaps left", ""},
		"one stays":           {object("v1", "ConfigMap", left, "stays"), object("v1", "ConfigMap", "stays"), "configmaps left", ""},
		"unreadable":          {object("v1", "ConfigMap", broken, left), "", "configmaps left", "delete ConfigMap broken: "},
		"not served":          {object("gone.example/v1", "Gadget", "x") + object("v1", "ConfigMap", left), "", "configmaps left", ""},
		"a pool in both APIs": {object("crd.projectcalico.org/v1", "IPPool", "remote-gcp", "remote-merit"), object("projectcalico.org/v3", "IPPool", "remote-gcp"), "ippools remote-merit", ""},
	} {
		deleted = nil
		_, phases, err := r.configuration(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		phases.made = []string{c.made, c.made}
		stay, err := phases.Build(strings.NewReader(c.stay), false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = phases.prune(stay)
		slices.Sort(deleted)
		if got := strings.Join(slices.Compact(deleted), ", "); got != c.want {
			t.Errorf("%s: deleted %q, expected %q", name, got, c.want)
		}
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, expected %q", name, err, c.err)
		}
	}
}
