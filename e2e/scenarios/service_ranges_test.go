package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestServiceRanges reads the ranges of ClusterIPs of clusters with one family and with two, as
// an administrator who may list ServiceCIDRs, and as one for whom the API server's refusals of
// ClusterIPs show them: that is how they are read before Kubernetes 1.33.
func TestServiceRanges(t *testing.T) {
	t.Parallel()
	tb := testbed.Start(t, testbed.Config{})
	ctx := within(t, 5*time.Minute)
	clusters, err := tb.StartClusters(ctx,
		// The API server's address must be of the family of the first range.
		testbed.ClusterConfig{Name: "six", PodSubnets: prefixes("fd00:10:4::/48"), ServiceSubnets: prefixes("fd00:10:96::/112"), APIServerArgs: []string{"--advertise-address=fd00:66::99"}},
		testbed.ClusterConfig{Name: "four", PodSubnets: prefixes("10.4.0.0/16"), ServiceSubnets: prefixes("10.96.0.0/16")},
		testbed.ClusterConfig{Name: "both", ServiceSubnets: prefixes("10.97.0.0/16", "fd00:10:97::/112")})
	must(t, err)
	for _, c := range clusters {
		_, err := c.Client().RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "limited"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"create"}},
		}}, metav1.CreateOptions{})
		must(t, err)
		_, err = c.Client().RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "limited"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "limited"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "limited"}},
		}, metav1.CreateOptions{})
		must(t, err)
		limited := rest.CopyConfig(c.RESTConfig())
		limited.Impersonate.UserName = "limited"
		for who, config := range map[string]*rest.Config{"administrator": c.RESTConfig(), "limited": limited} {
			client, err := kubernetes.NewForConfig(config)
			must(t, err)
			untyped, err := dynamic.NewForConfig(config)
			must(t, err)
			var found []netip.Prefix
			eventually(t, time.Minute, c.Name+": the ranges for the "+who, func(context.Context) error {
				f := inspect.Read(ctx, &cli.Cluster{Name: c.Name, Access: cli.Access{Context: c.Name}, Server: c.APIURL(), Config: config, Client: client, Dynamic: untyped})
				if found = f.Services; !slices.Equal(found, c.ServiceSubnets) {
					return fmt.Errorf("found %v, unread: %w", found, errors.Join(f.Unread...))
				}
				return nil
			})
			t.Logf("%s, %s: services in %v", c.Name, who, found)
		}
	}
}
