package join

import (
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// TestRightsToReadReports: join waits until programs report that they have new tokens, which one of
// two ways shows.
func TestRightsToReadReports(t *testing.T) {
	all := []string{"list pods", "create pods/exec", "get pods/proxy"}
	for name, c := range map[string]struct {
		lacks []string
		want  string // empty: no fault
	}{
		"all":          {nil, ""},
		"no exec":      {all[1:2], ""},
		"no proxy":     {all[2:], ""},
		"neither":      {all[1:], "create pods/exec in sys-semaphore"},
		"no list":      {all[:1], "list pods in sys-semaphore"},
		"none of them": {all, "create pods/exec in sys-semaphore; list pods in sys-semaphore"},
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
			a := review.Spec.ResourceAttributes
			what := a.Verb + " " + strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
			review.Status.Allowed = a.Verb != "*" && (a.Namespace != cli.Namespace || !slices.Contains(c.lacks, what))
			return true, review, nil
		})
		var said []string
		for _, f := range rights(t.Context(), &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Client: client}, &inspect.Facts{}, nil, false) {
			said = append(said, f.what)
		}
		text := strings.Join(said, "\n")
		if (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}
