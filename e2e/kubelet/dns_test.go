package kubelet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// startDNS runs CoreDNS in all clusters, which reloads its configuration as often as with
// kubeadm.
func (l *lab) startDNS(t *testing.T) {
	t.Helper()
	l.each(t, func(i int) error {
		c := l.clusters[i]
		ip := c.ServiceSubnets[0].Addr()
		for range 10 {
			ip = ip.Next()
		}
		file := filepath.Join(t.TempDir(), c.Name+".yaml")
		if err := os.WriteFile(file, []byte(strings.NewReplacer("@IMAGE@", dnsImage, "@IP@", ip.String()).Replace(dnsManifest)), 0o600); err != nil {
			return err
		}
		if err := c.Apply(t.Context(), file); err != nil {
			return err
		}
		return testbed.Wait(within(t, 3*time.Minute), "CoreDNS in "+c.Name, func(ctx context.Context) error {
			pods, err := c.Client().CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
			if err != nil {
				return err
			}
			if len(pods.Items) != 1 {
				return fmt.Errorf("%d pods", len(pods.Items))
			}
			return podReady(&pods.Items[0])
		})
	})
}

const dnsManifest = `apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects:
- {kind: ServiceAccount, name: coredns, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
        errors
        kubernetes cluster.local in-addr.arpa ip6.arpa {
            ttl 5
        }
        cache 5
        loadbalance
    }
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-dns}}
  template:
    metadata: {labels: {k8s-app: kube-dns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
      - name: coredns
        image: '@IMAGE@'
        args: [dns, /etc/coredns/Corefile]
        readinessProbe:
          tcpSocket: {port: 53}
          periodSeconds: 2
        volumeMounts:
        - {name: config, mountPath: /etc/coredns, readOnly: true}
      volumes:
      - {name: config, configMap: {name: coredns}}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: '@IP@'
  selector: {k8s-app: kube-dns}
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
`
