package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lacks returns the rights among wanted that the administrator lacks, sorted; empty: none.
// The error is that of the access reviews.
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
	var missing []string
	for _, a := range wanted {
		if failed == nil && !may(a) {
			name := strings.TrimSuffix(a.Resource+"/"+a.Subresource, "/")
			if a.Group != "" {
				name += "." + a.Group
			}
			missing = append(missing, a.Verb+" "+name)
		}
	}
	if failed != nil {
		return "", fmt.Errorf("review the rights of context %s: %w", c.Context, failed)
	}
	slices.Sort(missing)
	return strings.Join(slices.Compact(missing), ", "), nil
}
