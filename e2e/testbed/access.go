package testbed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// Credentials are a service account's files for a process, in a folder of
// their own.
type Credentials struct {
	Namespace, Name string

	cluster *Cluster
	dir     string
}

// Credentials requests a token for a service account, which must exist, and
// writes it to files. Each call makes other files, so that the tokens of two
// processes can be rotated and expire by themselves.
func (c *Cluster) Credentials(ctx context.Context, namespace, name string) (*Credentials, error) {
	c.mu.Lock()
	c.accounts++
	dir := filepath.Join(c.dir, "credentials", fmt.Sprintf("%s-%s-%d", namespace, name, c.accounts))
	c.mu.Unlock()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cr := &Credentials{Namespace: namespace, Name: name, cluster: c, dir: dir}
	if err := cr.Rotate(ctx); err != nil {
		return nil, err
	}
	for file, content := range map[string][]byte{"namespace": []byte(namespace), "ca.crt": c.plane.ca.pem} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
			return nil, err
		}
	}
	return cr, c.writeKubeconfig(cr.Kubeconfig(), kubeconfig{server: c.APIURL(), ca: c.plane.ca.pem, tokenFile: cr.TokenFile()})
}

// TokenFile holds the token.
func (cr *Credentials) TokenFile() string { return filepath.Join(cr.dir, "token") }

// Kubeconfig is the path of a kubeconfig file that refers to TokenFile.
func (cr *Credentials) Kubeconfig() string { return filepath.Join(cr.dir, "kubeconfig") }

// Rotate replaces the token by a new one that is valid for an hour.
func (cr *Credentials) Rotate(ctx context.Context) error {
	seconds := int64(time.Hour / time.Second)
	return cr.RotateFor(ctx, authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds})
}

// RotateFor replaces the token by the one that the API server makes of spec,
// for instance one that is bound to a pod.
func (cr *Credentials) RotateFor(ctx context.Context, spec authenticationv1.TokenRequestSpec) error {
	request, err := cr.cluster.client.CoreV1().ServiceAccounts(cr.Namespace).
		CreateToken(ctx, cr.Name, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("request a token for %s/%s in %s: %w", cr.Namespace, cr.Name, cr.cluster.Name, err)
	}
	return cr.SetToken(request.Status.Token)
}

// Expire replaces the token by a genuine one that expired a minute ago.
func (cr *Credentials) Expire(ctx context.Context) error {
	account, err := cr.cluster.client.CoreV1().ServiceAccounts(cr.Namespace).Get(ctx, cr.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	token, err := signToken(cr.cluster.plane.tokenKey, account, time.Now().Add(-time.Hour), time.Now().Add(-time.Minute))
	if err != nil {
		return err
	}
	return cr.SetToken(token)
}

// Invalidate replaces the account by one of the same name and rights, so that its earlier
// tokens are refused, also those that a program has read already.
func (cr *Credentials) Invalidate(ctx context.Context) error {
	accounts := cr.cluster.client.CoreV1().ServiceAccounts(cr.Namespace)
	if err := accounts.Delete(ctx, cr.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: cr.Name}}, metav1.CreateOptions{})
	return err
}

// SetToken writes a token as the kubelet does: a reader sees the old one or the
// new one, never a part.
func (cr *Credentials) SetToken(token string) error {
	partial := cr.TokenFile() + ".new"
	if err := os.WriteFile(partial, []byte(token), 0o644); err != nil {
		return err
	}
	return os.Rename(partial, cr.TokenFile())
}

// InCluster returns the mount and the environment of a pod that rest.InClusterConfig reads.
func (cr *Credentials) InCluster() (mount sandbox.Mount, env []string) {
	return sandbox.Bind(cr.dir, "/var/run/secrets/kubernetes.io/serviceaccount"), []string{
		"KUBERNETES_SERVICE_HOST=" + cr.cluster.plane.addresses[0].String(),
		"KUBERNETES_SERVICE_PORT=" + apiPort,
	}
}

// Grant creates a service account, and its namespace, with a cluster role of
// the rules, which the API server knows when it returns. It serves tests that don't use
// our manifests.
func (c *Cluster) Grant(ctx context.Context, namespace, name string, rules ...rbacv1.PolicyRule) error {
	var errs []error
	exists := func(err error) {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	meta := metav1.ObjectMeta{Name: namespace + "-" + name}
	_, err := c.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	exists(err)
	_, err = c.client.CoreV1().ServiceAccounts(namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	exists(err)
	_, err = c.client.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	exists(err)
	_, err = c.client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	exists(err)
	if len(errs) > 0 {
		return fmt.Errorf("grant %s/%s in %s: %w", namespace, name, c.Name, errs[0])
	}
	for _, rule := range rules {
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		right := authorizationv1.ResourceAttributes{
			Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
		}
		if len(rule.ResourceNames) > 0 {
			right.Name = rule.ResourceNames[0]
		}
		if err := c.AwaitRight(ctx, namespace, name, right, true); err != nil {
			return err
		}
	}
	return nil
}

// AwaitRight waits until the API server allows a service account something, or no longer
// does, for at most a minute: its authorizer applies changes with a delay.
func (c *Cluster) AwaitRight(ctx context.Context, namespace, name string, right authorizationv1.ResourceAttributes, allowed bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + namespace + ":" + name, ResourceAttributes: &right,
	}}
	what := fmt.Sprintf("what %s/%s may do with %s in %s", namespace, name, right.Resource, c.Name)
	return Wait(ctx, what, func(ctx context.Context) error {
		answer, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && answer.Status.Allowed != allowed {
			err = fmt.Errorf("%s: allowed is %v: %s", right.Verb, answer.Status.Allowed, answer.Status.Reason)
		}
		return err
	})
}

// Kubeconfig writes a kubeconfig file that has, with all rights, a context for each
// of the clusters, by its name, the first one's by default, and returns its path.
func (tb *Testbed) Kubeconfig() (string, error) {
	config := clientcmdapi.NewConfig()
	for i, c := range tb.Clusters() {
		admin, err := clientcmd.LoadFromFile(c.AdminKubeconfig())
		if err != nil {
			return "", err
		}
		context := admin.Contexts[admin.CurrentContext]
		config.Clusters[c.Name] = admin.Clusters[context.Cluster]
		config.AuthInfos[c.Name] = admin.AuthInfos[context.AuthInfo]
		config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: c.Name}
		if i == 0 {
			config.CurrentContext = c.Name
		}
	}
	path := filepath.Join(tb.state.dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*config, path)
}

// Run runs a program to its end on a machine that reaches all API servers despite cuts, like
// an administrator's, and returns its output.
func (tb *Testbed) Run(ctx context.Context, program string, args ...string) (string, error) {
	return tb.underlay.space.Output(ctx, program, args...)
}

// kubeconfig is what goes into a kubeconfig file: a client certificate or a
// token file.
type kubeconfig struct {
	server    string
	ca        []byte
	cert, key []byte
	tokenFile string
}

func (c *Cluster) writeKubeconfig(path string, k kubeconfig) error {
	config := clientcmdapi.NewConfig()
	config.Clusters[c.Name] = &clientcmdapi.Cluster{Server: k.server, CertificateAuthorityData: k.ca}
	config.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: k.cert,
		ClientKeyData:         k.key,
		TokenFile:             k.tokenFile,
	}
	config.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: "user"}
	config.CurrentContext = c.Name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
