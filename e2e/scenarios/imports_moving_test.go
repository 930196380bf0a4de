package scenarios_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/config/crd"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// Chapters of docs/multi-cluster-services.md.
const (
	chapterMoving  = "Moving"
	chapterAnother = "Moving from another implementation"
)

// documents runs the documented commands of a chapter that do is true for, with the files that
// they need.
func (m *imports) documents(t *testing.T, chapter string, do func(command string) (instead string, is bool)) {
	t.Helper()
	commands, err := docstest.Commands(docstest.Imports)
	must(t, err)
	dir := t.TempDir()
	must(t, errors.Join(
		os.WriteFile(filepath.Join(dir, "export.yaml"), []byte("apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata:\n  name: web\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "multicluster.x-k8s.io_serviceexports.yaml"), crd.ServiceExportCRD, 0o600),
		os.WriteFile(filepath.Join(dir, "multicluster.x-k8s.io_serviceimports.yaml"), crd.ServiceImportCRD, 0o600)))
	ran := 0
	for _, c := range commands {
		command, is := do(c.Text)
		if c.Chapter != chapter || !is {
			continue
		}
		ran++
		if out, err := shell(t, m.testbed, m.aws.Nodes()[0], m.binary, dir, fmt.Sprintf("document-%d", c.Line), command); err != nil {
			t.Fatalf("%s\n%s\n%v\n%s", c, command, err, out)
		}
	}
	if ran == 0 {
		t.Errorf("no commands in the chapter %s", chapter)
	}
}

// moving moves clients of a global and of a mirrored Service to an import and back, by the
// documented steps.
func (m *imports) moving(t *testing.T) {
	for _, c := range []struct {
		label, zone string
		of          []*testbed.Cluster
	}{
		{"global-service", "cluster.global", []*testbed.Cluster{m.aws, m.gcp}},
		{"mirror-service", "cluster.aws", []*testbed.Cluster{m.aws}},
	} {
		t.Run(c.label, func(t *testing.T) { m.move(t, c.label, c.zone, c.of) })
	}
}

func (m *imports) move(t *testing.T, label, zone string, of []*testbed.Cluster) {
	ns := "shop-" + label
	var pods []*testbed.Pod
	for _, c := range of {
		s := service("web", label+"=true")
		putService(t, c, ns, s, m.servers[c]...)
		pods = append(pods, m.servers[c]...)
	}
	if len(of) == 1 {
		m.in(t, ns, m.gcp)
	}
	old := "web." + ns + ".svc." + zone
	var clients []*asking
	began, control := time.Now(), m.control(t)
	to := func(name string) {
		t.Helper()
		// Kube-proxies serve a new ClusterIP after a moment.
		m.answeredIn(t, name, []*testbed.Cluster{m.gcp, m.merit}, 8888, pods...)
		next, at := m.requesting(t, name, m.gcp, m.merit), time.Now()
		for _, c := range next {
			c.settled(t, at, 2, pods...)
		}
		for _, c := range clients {
			none(t, "until "+name+" is requested", began, control, c)
			c.Stop()
		}
		clients, began = next, at
	}
	to(old)
	moved, back := false, false
	m.documents(t, chapterMoving, func(command string) (string, bool) {
		if len(of) == 1 && (strings.Contains(command, "--context gcp") || strings.Contains(command, "[1]")) {
			return "", false // there is one exporting cluster
		}
		if !moved && strings.Contains(command, "-service-") {
			moved = true
			to(importName(ns))
		}
		if !back && strings.Contains(command, " delete serviceexport ") {
			back = true
			to(old)
		}
		return strings.NewReplacer("shop", ns, "global-service", label).Replace(command), true
	})
	if !moved || !back {
		t.Errorf("steps are missing: moved %v, back %v", moved, back)
	}
	m.gone(t, ns, m.clusters...)
	at := time.Now()
	for _, c := range clients {
		c.settled(t, at, 2, pods...)
	}
	none(t, "after moving back", began, control, clients...)
	for _, c := range clients {
		c.Stop()
	}
}

// movingFromAnother has an import and a derived Service in gcp that another implementation has
// made, and removes them by the documented steps.
func (m *imports) movingFromAnother(t *testing.T) {
	const ns = "foreign"
	m.in(t, ns, m.clusters...)
	s := web()
	s.Name, s.Spec.Selector = mcs.DerivedName(ns, "web"), nil
	theirs, err := m.gcp.Client().CoreV1().Services(ns).Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
	_, err = m.api[m.gcp].ServiceImports(ns).Create(t.Context(), &v1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       v1beta1.ServiceImportSpec{Type: v1beta1.ClusterSetIP, IPs: theirs.Spec.ClusterIPs, Ports: []v1beta1.ServicePort{{Name: "http", Port: 8888, Protocol: corev1.ProtocolTCP}}},
	}, metav1.CreateOptions{})
	must(t, err)
	putService(t, m.aws, ns, web(), m.servers[m.aws]...)
	m.export(t, m.aws, ns)
	others := []*testbed.Cluster{m.aws, m.merit}
	m.answeredIn(t, importName(ns), others, 8888, m.servers[m.aws]...)
	name := importName(ns)
	here := &naming{client: m.clients[len(m.servers[m.aws])], dns: m.dns[m.gcp]}
	here.answers(t, name, dnsmessage.TypeA, name+". A "+theirs.Spec.ClusterIP)
	m.documents(t, chapterAnother, func(command string) (string, bool) {
		return strings.ReplaceAll(command, "--context aws", "--context gcp"), true
	})
	// Kubernetes' garbage collector, which doesn't run, deletes what their import owned.
	must(t, m.gcp.Client().CoreV1().Services(ns).Delete(t.Context(), theirs.Name, metav1.DeleteOptions{}))
	m.answered(t, ns, 8888, m.servers[m.aws]...)
	m.documents(t, "Install", func(command string) (string, bool) { return command, true })
}
