package testbed

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// StartKubeProxy runs kube-proxy on the node, so that ClusterIPs work there and in
// its pods: in nftables mode, unless further arguments say another. It needs
// tools.KubeProxy.
func (n *Node) StartKubeProxy(ctx context.Context, args ...string) (*sandbox.Process, error) {
	binary, err := n.tb.tool(tools.KubeProxy)
	if err != nil {
		return nil, err
	}
	credentials, err := n.Cluster.proxyCredentials(ctx)
	if err != nil {
		return nil, fmt.Errorf("start kube-proxy on %s: %w", n.Name, err)
	}
	var pods []string
	for _, subnet := range n.Cluster.PodSubnets {
		pods = append(pods, subnet.String())
	}
	return n.Start(sandbox.Command{
		Name: "kube-proxy",
		Path: binary,
		Args: append([]string{
			"--kubeconfig=" + credentials.Kubeconfig(),
			"--hostname-override=" + n.Name,
			"--proxy-mode=nftables",
			"--cluster-cidr=" + strings.Join(pods, ","),
			// These limits are the machine's, not the namespace's.
			"--conntrack-max-per-core=0",
			"--conntrack-tcp-timeout-established=0",
			"--conntrack-tcp-timeout-close-wait=0",
		}, args...),
	})
}

// proxyCredentials are those of a service account with the role that Kubernetes
// has for kube-proxy.
func (c *Cluster) proxyCredentials(ctx context.Context) (*Credentials, error) {
	const name = "kube-proxy"
	_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	_, err = c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "testbed:kube-proxy"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	return c.Credentials(ctx, metav1.NamespaceSystem, name)
}
