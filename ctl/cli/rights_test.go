package cli

import (
	"errors"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestLacks checks that a right is lacking only if the API server denies it, not if the
// request fails.
func TestLacks(t *testing.T) {
	wanted := []authorizationv1.ResourceAttributes{
		{Verb: "list", Resource: "nodes"}, {Verb: "create", Group: "projectcalico.org", Resource: "networkpolicies"},
		{Verb: "create", Resource: "serviceaccounts", Subresource: "token"},
	}
	for name, c := range map[string]struct {
		may      func(authorizationv1.ResourceAttributes) bool
		answered int // how often
		want     string
		fails    bool
	}{
		"all":             {func(authorizationv1.ResourceAttributes) bool { return true }, 9, "", false},
		"what is wanted":  {func(a authorizationv1.ResourceAttributes) bool { return a.Verb != "*" }, 9, "", false},
		"less":            {func(a authorizationv1.ResourceAttributes) bool { return a.Verb == "list" }, 9, "create networkpolicies.projectcalico.org and serviceaccounts/token", false},
		"no answer":       {nil, 0, "", true},
		"no further ones": {func(authorizationv1.ResourceAttributes) bool { return false }, 2, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if c.answered--; c.answered < 0 {
					return true, nil, errors.New("connection refused")
				}
				review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
				review.Status.Allowed = c.may(*review.Spec.ResourceAttributes)
				return true, review, nil
			})
			got, err := (&Cluster{Name: "aws", Access: Access{Context: "aws"}, Client: client}).Lacks(t.Context(), wanted)
			if got != c.want || (err != nil) != c.fails {
				t.Errorf("lacks %q, %v", got, err)
			}
		})
	}
}
