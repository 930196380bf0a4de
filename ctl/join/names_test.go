package join

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// TestUnnamed says why names of other clusters won't be resolved.
func TestUnnamed(t *testing.T) {
	const main = ".:53 {\n    kubernetes cluster.local\n    reload\n}\n"
	wanted := &manifests.Cluster{Remotes: []cluster.Name{"gcp"}}
	for name, c := range map[string]struct {
		corefile string
		labels   map[string]string
		want     string
	}{
		"in order":         {main, nil, ""},
		"marks":            {main + "# BEGIN semaphorectl: names of services of other clusters. What is in here is overwritten.\n", nil, "aren't a pair"},
		"it can't be read": {main + "{\n", nil, "correct it"},
		"the domain":       {".:53 {\n    kubernetes cluster.gcp\n    reload\n}\n", nil, "give that cluster another name"},
		"a zone is taken":  {main + "cluster.gcp:53 {\n}\n", nil, "leaves it unchanged"},
		"set back":         {main, map[string]string{"addonmanager.kubernetes.io/mode": "Reconcile"}, "join doesn't add the server blocks for cluster.gcp, cluster.global"},
		"set back later":   {main, map[string]string{"app.kubernetes.io/managed-by": "Helm"}, "Helm release sets back ConfigMap kube-system/coredns, key Corefile at its next upgrade"},
	} {
		f := healthy(t, "aws", "10.2.0.0/16", "10.102.0.0/16", "10.66.1.2")
		var err error
		if f.DNS, err = coredns.Read(t.Context(), fake.NewClientset(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system", Labels: c.labels}, Data: map[string]string{"Corefile": c.corefile},
		})); err != nil {
			t.Fatal(err)
		}
		only(t, name, unnamed(f, wanted), c.want)
	}
	only(t, "no CoreDNS", unnamed(&inspect.Facts{}, wanted), "kube-system has no CoreDNS")
}
