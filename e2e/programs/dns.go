package programs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// DNS is CoreDNS on a node, with the server blocks of deploy/coredns.
type DNS struct{ address string }

// StartDNS runs CoreDNS on a node, with the rights that Kubernetes gives it.
func StartDNS(ctx context.Context, binary string, node *testbed.Node) (*DNS, error) {
	root, err := tools.Root(ctx)
	if err != nil {
		return nil, err
	}
	return StartDNSWith(ctx, binary, node, filepath.Join(root, "deploy", "coredns", "Corefile"))
}

// InstallDNS creates the configuration of CoreDNS, and its Deployment, by which semaphorectl join
// knows its version and account.
func InstallDNS(ctx context.Context, c *testbed.Cluster) error {
	client, labels := c.Client(), map[string]string{"k8s-app": "kube-dns"}
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	const corefile = ".:53 {\n    errors\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n        ttl 5\n    }\n    cache 5\n}\n"
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns"}, Data: map[string]string{"Corefile": corefile}}
	if _, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, config, metav1.CreateOptions{}); err != nil {
		return err
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Labels: labels}}
	d.Spec.Selector, d.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	d.Spec.Template.Spec = corev1.PodSpec{
		ServiceAccountName: "coredns",
		Containers: []corev1.Container{{
			Name: "coredns", Image: "registry.k8s.io/coredns/coredns:v1.14.3", Args: []string{"-conf", "/etc/coredns/Corefile"},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/coredns"}},
		}},
		Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "coredns"}},
		}}},
	}
	_, err = client.AppsV1().Deployments(metav1.NamespaceSystem).Create(ctx, d, metav1.CreateOptions{})
	return err
}

// StartInstalledDNS runs CoreDNS on a node with the configuration of the cluster, which it
// writes to a folder.
func StartInstalledDNS(ctx context.Context, binary string, node *testbed.Node, dir string) (*DNS, error) {
	config, err := node.Cluster.Client().CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "coredns", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, node.Name+"-Corefile")
	if err := os.WriteFile(file, []byte(config.Data["Corefile"]), 0o644); err != nil {
		return nil, err
	}
	return StartDNSWith(ctx, binary, node, file)
}

// StartDNSWith is StartDNS with another configuration.
func StartDNSWith(ctx context.Context, binary string, node *testbed.Node, corefile string) (*DNS, error) {
	list := []string{"list", "watch"}
	err := node.Cluster.Grant(ctx, metav1.NamespaceSystem, "coredns",
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "pods", "namespaces"}, Verbs: list},
		rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: list})
	if err != nil {
		return nil, err
	}
	credentials, err := node.Cluster.Credentials(ctx, metav1.NamespaceSystem, "coredns")
	if err != nil {
		return nil, err
	}
	mount, env := credentials.InCluster()
	_, err = node.Start(sandbox.Command{
		Name: "coredns", Path: binary, Env: env, Mounts: []sandbox.Mount{mount},
		Args: []string{"-conf", corefile},
	})
	return &DNS{net.JoinHostPort(node.Addresses()[0].String(), "53")}, err
}

// askAgain is how long Ask waits for an answer before it sends its query again, as
// resolvers do (resolv.conf(5)): a packet may be lost.
const askAgain = 3 * time.Second

// Ask sends a query from a pod, until there is an answer or ctx ends, and returns the
// answer's records as text, sorted: name, type, value. An answer that isn't a success is
// an error with the code's name.
func (d *DNS) Ask(ctx context.Context, from *testbed.Pod, name string, kind dnsmessage.Type) ([]string, error) {
	question, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return nil, err
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: question, Type: kind, Class: dnsmessage.ClassINET}},
	}
	answer, err := d.exchange(ctx, from, &query)
	for errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
		answer, err = d.exchange(ctx, from, &query)
	}
	if err != nil {
		return nil, err
	}
	if answer.RCode != dnsmessage.RCodeSuccess {
		return nil, errors.New(answer.RCode.String())
	}
	if q := answer.Questions; len(q) != 1 || q[0].Name != question {
		return nil, fmt.Errorf("answer to %v", q)
	}
	var records []string
	for _, r := range answer.Answers {
		records = append(records, r.Header.Name.String()+" "+value(r.Body))
	}
	slices.Sort(records)
	return records, nil
}

func (d *DNS) exchange(ctx context.Context, from *testbed.Pod, query *dnsmessage.Message) (*dnsmessage.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, askAgain)
	defer cancel()
	packed, err := query.Pack()
	if err != nil {
		return nil, err
	}
	conn, err := from.Dial(ctx, "udp", d.address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := conn.Write(packed); err != nil {
		return nil, err
	}
	buffer := make([]byte, 4096)
	length, err := conn.Read(buffer)
	if err != nil {
		return nil, err
	}
	answer := &dnsmessage.Message{}
	if err := answer.Unpack(buffer[:length]); err != nil {
		return nil, err
	}
	return answer, nil
}

func value(body dnsmessage.ResourceBody) string {
	switch body := body.(type) {
	case *dnsmessage.AResource:
		return "A " + netip.AddrFrom4(body.A).String()
	case *dnsmessage.AAAAResource:
		return "AAAA " + netip.AddrFrom16(body.AAAA).String()
	case *dnsmessage.SRVResource:
		return fmt.Sprintf("SRV %d %s", body.Port, body.Target)
	}
	return ""
}
