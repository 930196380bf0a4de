package gather

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// Secrets that must not appear, none of them real.
var (
	jwt     = "eyJhbGciOiJFUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"planted"}`)) + ".cGxhbnRlZA"
	private = base64.StdEncoding.EncodeToString([]byte("planted private key of 32 bytes!"))
	pemKey  = "-----BEGIN EC PRIVATE KEY-----\nplanted\n-----END EC PRIVATE KEY-----"
	public  = base64.StdEncoding.EncodeToString([]byte("a node's public key of 32 bytes!"))
)

func TestRedact(t *testing.T) {
	keys := map[string]bool{public: true}
	for text, want := range map[string]string{
		"msg=failed token " + jwt + " end":                             "msg=failed token [REDACTED] end",
		`{"a":"` + strings.ReplaceAll(pemKey, "\n", `\n`) + `","b":1}`: `{"a":"[REDACTED]","b":1}`,
		"x -----BEGIN PRIVATE KEY-----\ncut off":                       "x [REDACTED]",
		"get https://me:planted@api.example:6443/x":                    "get https://[REDACTED]@api.example:6443/x",
		"Authorization: Bearer planted-opaque-token":                   "Authorization: Bearer [REDACTED]",
		"https://me:pla@nted@api.example/x":                            "https://[REDACTED]@api.example/x",
		`{"a":"{\"password\":\"planted1\"}"}`:                          `{"a":"{\"password\":\"[REDACTED]\"}"}`,
		`{"password":"a\u0026planted1"}`:                               `{"password":"[REDACTED]"}`,
		`{"password":"planted\u003c1"}`:                                `{"password":"[REDACTED]"}`,
		`password=planted1 next`:                                       "password=[REDACTED] next",
		`{"clientSecret": "planted1", "secretName":"name"}`:            `{"clientSecret": "[REDACTED]", "secretName":"name"}`,
		"PrivateKey = " + private + "\nPublicKey = " + public:          "PrivateKey = [REDACTED]\nPublicKey = " + public,
		"peer " + public + " key " + private:                           "peer " + public + " key [REDACTED]",
		"https://api.example:6443 is healthy, 10.0.0.1:51840":          "https://api.example:6443 is healthy, 10.0.0.1:51840",
		`{"volumes":[{"secret":{"secretName":"semaphore-remotes"}}]}`:  `{"volumes":[{"secret":{"secretName":"semaphore-remotes"}}]}`,
	} {
		if got := redact(text, keys); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", text, got, want)
		}
	}
}

// at returns a cluster with objects.
func at(t *testing.T, name string, objects ...runtime.Object) *cli.Cluster {
	t.Helper()
	lists := map[schema.GroupVersionResource]string{}
	for _, k := range kinds {
		lists[schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.resource}] = "SomeList"
	}
	var untyped []runtime.Object
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		of, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{Object: fields}
		u.SetGroupVersionKind(of[0])
		untyped = append(untyped, u)
	}
	return &cli.Cluster{
		Name: name, Access: cli.Access{Context: name}, Client: fake.NewClientset(objects...), Config: &rest.Config{Host: "https://127.0.0.1:1"},
		Dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, untyped...),
	}
}

// files returns the files of an archive.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for from := tar.NewReader(compressed); ; {
		head, err := from.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		if !filepath.IsLocal(head.Name) {
			t.Errorf("file %q", head.Name)
		}
		all[head.Name] = string(text)
	}
}

// TestCluster reads objects with planted secrets.
func TestCluster(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: cli.Namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/part-of": "kube-semaphore"},
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "planted"},
		}
	}
	c := at(t, "aws",
		&corev1.Secret{ObjectMeta: meta("s"), Data: map[string][]byte{"gcp.token": []byte("planted")}},
		&corev1.ConfigMap{ObjectMeta: meta("semaphore"), Data: map[string]string{"SEMAPHORE_REMOTES": "gcp", "x": "token " + jwt + " " + private}},
		&appsv1.DaemonSet{ObjectMeta: meta("semaphore-wireguard"), Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Env: []corev1.EnvVar{{Name: "SEMAPHORE_LOG_LEVEL", Value: "debug"}, {Name: "PROXY", Value: "planted"}}}},
		}}}},
		&corev1.Pod{ObjectMeta: meta("p"), Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "agent", RestartCount: 1}}}},
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"},
			Data:       map[string]string{"Corefile": ".:53 {}", "../../etc/passwd": "hostile"},
		},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"gcp.wireguard.semaphore.uw.io/pubKey": public}}},
	)
	var body bytes.Buffer
	compressed := gzip.NewWriter(&body)
	a := &archive{tar: tar.NewWriter(compressed), public: map[string]bool{public: true}, left: maxCluster}
	survey := &inspect.Cluster{Name: "aws"}
	survey.DNS.Value = &coredns.Setup{Namespace: "kube-system", Main: "coredns"}
	if err := errors.Join(a.cluster(t.Context(), c, survey), a.tar.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	got := files(t, body.Bytes())
	for name, text := range got {
		if strings.Contains(text, "planted") || strings.Contains(text, private) || strings.Contains(text, jwt) {
			t.Errorf("%s: %s", name, text)
		}
	}
	for name, want := range map[string]string{
		"aws/dns/coredns/Corefile": ".:53", "aws/objects/configmaps.json": `"SEMAPHORE_REMOTES":"gcp"`, "aws/objects/daemonsets.json": `"value":"debug"`,
		"aws/objects/nodes.json": public, "aws/logs/p/agent.log": "fake logs", "aws/logs/p/agent.before.log": "fake logs", "aws/survey.json": "aws",
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s lacks %q: %s", name, want, got[name])
		}
	}
	if len(a.unread) != 1 || !strings.Contains(a.unread[0], `the key "../../etc/passwd"`) {
		t.Errorf("unread: %q", a.unread)
	}
}

// TestFile checks that the archive is written whole or not at all, and replaces nothing.
func TestFile(t *testing.T) {
	var out bytes.Buffer
	s := cli.NewSession(strings.NewReader(""), &out, &out, func(string) (string, bool) { return "", false })
	file := filepath.Join(t.TempDir(), "a.tar.gz")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := write(ended, s, []*cli.Cluster{at(t, "aws")}, file); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) > 0 {
		t.Errorf("interrupted: it left %v, %v", left, err)
	}
	// Nothing listens there: the archive says so, and the exit code that something is unknown.
	if err := write(t.Context(), s, []*cli.Cluster{at(t, "aws")}, file); err == nil || !strings.Contains(out.String(), "aws: API server") {
		t.Errorf("%v, %s", err, out.String())
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode() != 0o600 || !strings.Contains(out.String(), "Before you send") {
		t.Errorf("%v, %v\n%s", info, err, out.String())
	}
	cmd := Command(s)
	cmd.SetArgs([]string{"aws"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "-o: the archive's path is missing") {
		t.Errorf("without a path: %v", err)
	}
	if err := write(t.Context(), s, []*cli.Cluster{at(t, "aws")}, file); err == nil || !strings.Contains(err.Error(), "it exists already") {
		t.Errorf("it replaced a file: %v", err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(info, after) || info.Size() != after.Size() {
		t.Errorf("it changed a file: %v", err)
	}
}
