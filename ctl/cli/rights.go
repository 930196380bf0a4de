package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Lacks returns the rights among wanted that the administrator lacks, as in "create and patch
// configmaps and secrets in sys-semaphore; list nodes"; empty: none. The error is that of the
// access reviews.
func (c *Cluster) Lacks(ctx context.Context, wanted []authorizationv1.ResourceAttributes) (string, error) {
	var failed error
	may := func(a authorizationv1.ResourceAttributes) bool {
		review, err := c.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a},
		}, metav1.CreateOptions{})
		failed = cmp.Or(failed, err)
		return err == nil && review.Status.Allowed
	}
	if may(authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"}) {
		return "", nil
	}
	var missing []authorizationv1.ResourceAttributes
	for _, a := range wanted {
		if failed == nil && !may(a) {
			missing = append(missing, a)
		}
	}
	if failed != nil {
		return "", fmt.Errorf("review the rights of context %s: %w", c.Context, failed)
	}
	return grouped(missing), nil
}

// grouped formats rights: resources with the same verbs and namespace together.
func grouped(rights []authorizationv1.ResourceAttributes) string {
	type resource struct{ namespace, name string }
	type group struct{ namespace, verbs string }
	verbs, names := map[resource][]string{}, map[group][]string{}
	for _, a := range rights {
		name := strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
		if a.Group != "" {
			name += "." + a.Group
		}
		if r := (resource{a.Namespace, name}); !slices.Contains(verbs[r], a.Verb) {
			verbs[r] = append(verbs[r], a.Verb)
		}
	}
	for r, words := range verbs {
		g := group{r.namespace, And(words...)}
		names[g] = append(names[g], r.name)
	}
	var lines []string
	for g, resources := range names {
		slices.Sort(resources)
		line := g.verbs + " " + And(resources...)
		if g.namespace != "" {
			line += " in " + g.namespace
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// Account returns the context with the account that the API server takes it for.
func (c *Cluster) Account(ctx context.Context) string {
	review, err := c.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || review.Status.UserInfo.Username == "" {
		return "the context " + c.Context
	}
	return "the account " + printable.Text(review.Status.UserInfo.Username, printable.Short) + " of the context " + c.Context
}
