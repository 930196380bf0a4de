package coredns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// TestCoreDNSStarts runs CoreDNS with each layout as it was, as join leaves it, and as leave
// does: it starts, which is also what it does after a restart, and answers for each name.
func TestCoreDNSStarts(t *testing.T) {
	binary := coreDNS(t)
	api := serveAPI(t)
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset(l.objects...)
			one := process{binary, api, client}
			one.start(t)
			if _, err := Write(t.Context(), client, zones); err != nil {
				t.Fatal(err)
			}
			ask := one.start(t)
			for question, answered := range map[string]bool{
				"aws-shop.sys-semaphore.svc.cluster.local.": true,
				"web.shop.svc.cluster.merit.":               !l.unserved,
				"db.shop.svc.cluster.global.":               !l.unserved,
				"web.shop.svc.clusterset.local.":            !l.unserved,
			} {
				if code, records := ask(question); (code == dnsmessage.RCodeSuccess && len(records) == 1) != answered {
					t.Errorf("%s: %s, %v, expected an answer: %v", question, code, records, answered)
				}
			}
			if _, err := Write(t.Context(), client, nil); err != nil {
				t.Fatal(err)
			}
			ask = one.start(t)
			for _, name := range []string{"web.shop.svc.cluster.merit.", "web.shop.svc.clusterset.local."} {
				if code, records := ask(name); code == dnsmessage.RCodeSuccess {
					t.Errorf("%s after its removal: %v", name, records)
				}
			}
		})
	}
}

// TestCoreDNSRefusesTwice checks what the rest depends on: CoreDNS doesn't start with two
// server blocks for one zone, in whichever files they are.
func TestCoreDNSRefusesTwice(t *testing.T) {
	binary := coreDNS(t)
	client := fake.NewClientset(append(layouts()["AKS"].objects[:1:1], layouts()["AKS"].objects[2],
		configMap(custom, map[string]string{"a.server": zoned, "semaphore.server": withBlock("", zoned)}))...)
	if twice := read(t.Context(), t, client).Twice(); len(twice) != 1 || twice[0] != "cluster.gcp:53" {
		t.Errorf("twice: %v", twice)
	}
	one := process{binary, serveAPI(t), client}
	cmd, _, output := one.command(t)
	if err := cmd.Run(); err == nil || !strings.Contains(output.String(), "already defined") {
		t.Errorf("%v\n%s", err, output)
	}
	// Join heals it.
	if _, err := Write(t.Context(), client, zones); err != nil {
		t.Fatal(err)
	}
	one.start(t)
}

// TestNamesThatAreNotServices are answered with NXDOMAIN: a resolver that gets SERVFAIL asks
// again, and others.
func TestNamesThatAreNotServices(t *testing.T) {
	client := fake.NewClientset(layouts()["kubeadm"].objects...)
	if _, err := Write(t.Context(), client, zones); err != nil {
		t.Fatal(err)
	}
	one := process{coreDNS(t), serveAPI(t), client}
	ask := one.start(t)
	for question, want := range map[string]dnsmessage.RCode{
		"web.shop.svc.cluster.merit.":     dnsmessage.RCodeSuccess,
		"missing.shop.svc.cluster.merit.": dnsmessage.RCodeNameError,
		"host.cluster.merit.":             dnsmessage.RCodeNameError,
		"10-2-0-7.shop.pod.cluster.gcp.":  dnsmessage.RCodeNameError,
		"shop.svc.cluster.gcp.":           dnsmessage.RCodeNameError,
		"example.cluster.global.":         dnsmessage.RCodeNameError,
		"web.shop.svc.clusterset.local.":  dnsmessage.RCodeSuccess,
		"db.shop.svc.clusterset.local.":   dnsmessage.RCodeNameError,
		"web.none.svc.clusterset.local.":  dnsmessage.RCodeNameError,
		"host.clusterset.local.":          dnsmessage.RCodeNameError,
		"cluster.gcp.":                    dnsmessage.RCodeSuccess,
		"cluster.global.":                 dnsmessage.RCodeSuccess,
	} {
		if code, _ := ask(question); code != want {
			t.Errorf("%s: %s, expected %s", question, code, want)
		}
	}
}

func coreDNS(t *testing.T) string {
	t.Helper()
	binaries, err := tools.Build(t.Context(), t.Output(), tools.CoreDNS)
	if err != nil {
		t.Fatal(err)
	}
	return binaries[tools.CoreDNS]
}

// process is CoreDNS on this machine, with the files of a pod.
type process struct {
	binary, api string
	client      kubernetes.Interface
}

var (
	ports   = regexp.MustCompile(`:(53|5353|8053)\b`)
	plugins = regexp.MustCompile(`(?m)^ *(ready|prometheus|forward|loop|reload)\b.*\n`) // that our build lacks
)

// command prepares CoreDNS with its mounts below a folder, at a port of its own, and with the
// API server.
func (p *process) command(t *testing.T) (cmd *exec.Cmd, port int, output *bytes.Buffer) {
	t.Helper()
	root := t.TempDir()
	in, main, mounts := p.mounts(t)
	port, tls := freePort(t), freePort(t)
	for _, m := range mounts {
		object := in.maps[m.name]
		if object == nil {
			continue
		}
		for key, text := range object.Data {
			if m.keys != nil {
				if key = m.keys[key]; key == "" {
					continue
				}
			}
			text = ports.ReplaceAllString(plugins.ReplaceAllString(text, ""), fmt.Sprintf(":%d", port))
			text = strings.ReplaceAll(text, ":853", fmt.Sprintf(":%d", tls))
			text = strings.ReplaceAll(text, "import /etc/", "import "+root+"/etc/")
			text = regexp.MustCompile(`(?m)^ +kubernetes .*[a-z.]$`).ReplaceAllString(text, "$0 {\n    }")
			text = regexp.MustCompile(`(?m)^ +kubernetes .*\{$`).ReplaceAllString(text, "$0\n        endpoint "+p.api)
			file := filepath.Join(root, m.folder, key)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
	}
	output = &bytes.Buffer{}
	cmd = exec.CommandContext(t.Context(), p.binary, "-conf", filepath.Join(root, main))
	cmd.Stdout, cmd.Stderr = output, output
	return cmd, port, output
}

// given are the ports that freePort has returned.
var given sync.Map

// freePort returns a port of the loopback that no other process has, and that no other CoreDNS of
// this test is about to take: its answers would be taken for those of one that doesn't start.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		port := conn.LocalAddr().(*net.UDPAddr).Port
		conn.Close()
		if _, before := given.LoadOrStore(port, true); !before {
			return port
		}
	}
}

// mounts returns the objects, and what the container that runs CoreDNS sees of them.
func (p *process) mounts(t *testing.T) (in *objects, main string, mounts []mount) {
	t.Helper()
	s := read(t.Context(), t, p.client)
	in, err := readObjects(t.Context(), p.client, s.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	main = "/etc/coredns/Corefile"
	for i := range in.workloads {
		if w := &in.workloads[i]; w.container() != nil {
			return in, main, w.mounts(w.container())
		}
	}
	return in, main, []mount{{"/etc/coredns", s.Main, nil}, {"/etc/coredns/custom", custom, nil}}
}

// start runs CoreDNS until the test ends, and returns a function that asks it. It fails the
// test unless CoreDNS answers.
func (p *process) start(t *testing.T) func(name string) (dnsmessage.RCode, []string) {
	t.Helper()
	cmd, port, output := p.command(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, exit := make(chan struct{}), error(nil)
	go func() {
		defer close(ended)
		exit = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		code, _, err := ask(ctx, port, "aws-shop.sys-semaphore.svc.cluster.local.")
		if err == nil && code == dnsmessage.RCodeSuccess {
			break
		}
		select {
		case <-ended:
			if strings.Contains(output.String(), "address already in use") {
				return p.start(t) // Another program has taken the port meanwhile.
			}
			t.Fatalf("CoreDNS has exited: %v\n%s", exit, output)
		case <-ctx.Done():
			t.Fatalf("CoreDNS doesn't answer: %v, %v", code, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return func(name string) (dnsmessage.RCode, []string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		code, records, err := ask(ctx, port, name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return code, records
	}
}

// ask asks for the IPv4 addresses of a name. Each second without an answer, it asks again.
func ask(ctx context.Context, port int, name string) (dnsmessage.RCode, []string, error) {
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
	}}
	packed, err := query.Pack()
	if err != nil {
		return 0, nil, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0, nil, err
	}
	defer conn.Close()
	buffer := make([]byte, 4096)
	for {
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return 0, nil, err
		}
		if _, err := conn.Write(packed); err != nil {
			return 0, nil, err
		}
		n, err := conn.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			continue
		}
		var answer dnsmessage.Message
		if err == nil {
			err = answer.Unpack(buffer[:n])
		}
		var records []string
		for _, r := range answer.Answers {
			records = append(records, r.Header.Name.String())
		}
		return answer.RCode, records, err
	}
}

// serveAPI serves what CoreDNS lists and watches: mirrors in sys-semaphore, and the import web
// of the namespace shop.
func serveAPI(t *testing.T) string {
	t.Helper()
	var services corev1.ServiceList
	services.TypeMeta = metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}
	for i, name := range []string{"aws-shop", "gcp-shop-73736d-web", "merit-shop-73736d-web", "gl-shop-73736d-db"} {
		services.Items = append(services.Items, corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "sys-semaphore", UID: "u", ResourceVersion: "1"},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.102.0.%d", i+1), Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		})
	}
	imports := v1alpha1.ServiceImportList{TypeMeta: metav1.TypeMeta{Kind: "ServiceImportList", APIVersion: v1alpha1.GroupVersion.String()}, Items: []v1alpha1.ServiceImport{{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u", ResourceVersion: "1"},
		Spec:       v1alpha1.ServiceImportSpec{Type: v1alpha1.ClusterSetIP, IPs: []string{"10.102.1.1"}, Ports: []v1alpha1.ServicePort{{Name: "http", Port: 80}}},
	}}}
	namespaces := corev1.NamespaceList{TypeMeta: metav1.TypeMeta{Kind: "NamespaceList", APIVersion: "v1"}, Items: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "sys-semaphore"}}, {ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}}
	lists := map[string]any{
		"services": services, "namespaces": namespaces, "serviceimports": imports,
		"endpointslices": discoveryv1.EndpointSliceList{TypeMeta: metav1.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		list := lists[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") != "":
			w.WriteHeader(http.StatusUnprocessableEntity)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case query.Get("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case list == nil:
			w.WriteHeader(http.StatusNotFound)
		default:
			_ = json.NewEncoder(w).Encode(list)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}
