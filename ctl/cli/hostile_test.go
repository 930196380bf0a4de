package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

const secretToken = "secret-words"

// hostile returns a session with access to one cluster with a hostile API server.
func hostile(t *testing.T, answer http.HandlerFunc) (*Cluster, *Session, *bytes.Buffer) {
	t.Helper()
	return clusterOf(t, answer, "{token: "+secretToken+"}")
}

// clusterOf is hostile with a user of the kubeconfig.
func clusterOf(t *testing.T, answer http.HandlerFunc, user string) (*Cluster, *Session, *bytes.Buffer) {
	t.Helper()
	server := httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{apiVersion: v1, kind: Config,
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}],
users: [{name: u, user: %s}], contexts: [{name: aws, context: {cluster: c, user: u}}]}`,
		server.URL, base64.StdEncoding.EncodeToString(ca), user)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	s := NewSession(nil, &out, &out)
	s.kubeconfig = file
	clusters, err := s.Clusters([]string{"aws"})
	if err != nil {
		t.Fatal(err)
	}
	return clusters[0], s, &out
}

var things = schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "things"}

// requests returns one request of each kind.
func requests(c *Cluster) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"version": func(context.Context) error { _, err := c.Client.Discovery().ServerVersion(); return err },
		"discovery": func(ctx context.Context) error {
			_, err := c.ResourceOf(ctx, schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
			return err
		},
		"get": func(ctx context.Context) error {
			_, err := c.Client.CoreV1().ConfigMaps("n").Get(ctx, "m", metav1.GetOptions{})
			return err
		},
		"create": func(ctx context.Context) error {
			_, err := c.Client.CoreV1().Secrets("n").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
			return err
		},
		"list": func(ctx context.Context) error {
			return List(ctx, c.Client.CoreV1().Nodes(), metav1.ListOptions{}, func(*corev1.Node) error { return nil })
		},
		"a plain list": func(ctx context.Context) error {
			_, err := c.Client.CoreV1().Pods("n").List(ctx, metav1.ListOptions{})
			return err
		},
		"dynamic get": func(ctx context.Context) error {
			_, err := c.Dynamic.Resource(things).Get(ctx, "m", metav1.GetOptions{})
			return err
		},
		"dynamic list": func(ctx context.Context) error {
			return ListUntyped(ctx, c.Dynamic.Resource(things), metav1.ListOptions{}, func(*unstructured.Unstructured) error { return nil })
		},
		"stream": func(ctx context.Context) error {
			stream, err := c.Client.CoreV1().Pods("n").GetLogs("p", &corev1.PodLogOptions{}).Stream(ctx)
			if err == nil {
				_, err = io.Copy(io.Discard, stream)
				_ = stream.Close()
			}
			return err
		},
		"proxy": func(ctx context.Context) error {
			stream, err := c.Client.CoreV1().RESTClient().Get().Namespace("n").Resource("pods").Name("p").SubResource("proxy").Stream(WithRaw(ctx, 1<<20))
			if err == nil {
				_, err = io.ReadAll(stream)
				_ = stream.Close()
			}
			return err
		},
		"exec": func(ctx context.Context) error {
			_, err := c.Exec(ctx, "n", "p", "c", []string{"true"}, 1<<20)
			return err
		},
	}
}

// TestNoRequestIsRedirected redirects each request to another server of the cluster, and to
// one without TLS.
func TestNoRequestIsRedirected(t *testing.T) {
	var elsewhere atomic.Int64
	other := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) })
	secure, plain := httptest.NewTLSServer(other), httptest.NewServer(other)
	defer secure.Close()
	defer plain.Close()
	for _, to := range []string{secure.URL, plain.URL} {
		for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
			c, _, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to+r.URL.Path, code) })
			for name, ask := range requests(c) {
				err := ask(t.Context())
				if err == nil || !strings.Contains(err.Error(), "redirects are not followed") {
					t.Errorf("%s, %d to %s: %v", name, code, to, err)
				}
			}
		}
	}
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("%d requests were redirected", n)
	}
}

// TestCredentialPlugin uses the token of the kubeconfig's exec plugin, and a new one when
// the first one is refused.
func TestCredentialPlugin(t *testing.T) {
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no sh: ", err)
	}
	count := filepath.Join(t.TempDir(), "count")
	script := fmt.Sprintf(`echo >>%[1]s; printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"token-%%d"}}' $(wc -l <%[1]s)`, count)
	var mu sync.Mutex
	var tokens []string
	c, _, _ := clusterOf(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if len(tokens) == 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/exec") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"gitVersion":"v1"}`)
	}, fmt.Sprintf("{exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, args: [-c, %q], interactiveMode: Never}}", script))
	if _, err := c.Client.Discovery().ServerVersion(); err == nil {
		t.Error("the first token was accepted")
	}
	if v, err := c.Client.Discovery().ServerVersion(); err != nil || v.GitVersion != "v1" {
		t.Error(v, err)
	}
	if _, err := c.Exec(t.Context(), "n", "p", "c", []string{"true"}, 1); err == nil || !strings.Contains(err.Error(), "403") {
		t.Error(err)
	}
	if want := []string{"token-1", "token-2", "token-2"}; !slices.Equal(tokens, want) {
		t.Errorf("tokens %q, expected %q", tokens, want)
	}
}

// endless writes begin, and then part forever.
func endless(w io.Writer, begin, part string) {
	_, err := io.WriteString(w, begin)
	for whole := strings.Repeat(part, 1+(64<<10)/len(part)); err == nil; {
		_, err = io.WriteString(w, whole)
	}
}

// TestHostileResponsesTakeLittleMemory sends responses that would take gigabytes, raw or
// decoded. It measures all allocations, including freed ones.
func TestHostileResponsesTakeLittleMemory(t *testing.T) {
	const most = 256 << 20
	status := func(code int, media string, write func(io.Writer)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(code)
			write(w)
		}
	}
	const largest = "as many items as are taken"
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 256 {
		_, _ = z.Write(make([]byte, 1<<20)) // A buffer returns no errors.
	}
	_ = z.Close()
	answers := map[string]http.HandlerFunc{
		"gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		},
		"items of nothing": status(200, "application/json", func(w io.Writer) {
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[`+strings.Repeat("{},", 5<<20)+`{}]}`)
		}),
		largest: status(200, "application/json", func(w io.Writer) {
			_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[`+strings.Repeat("{},", 31<<10)+`{}]}`)
		}),
		"endless items":      status(200, "application/json", func(w io.Writer) { endless(w, `{"kind":"PodList","apiVersion":"v1","items":[`, "{},") }),
		"endless discovery":  status(200, "application/json", func(w io.Writer) { endless(w, `{"kind":"APIGroupDiscoveryList","items":[{"versions":[`, "{},") }),
		"brackets":           status(200, "application/json", func(w io.Writer) { endless(w, "", "[") }),
		"one endless text":   status(200, "application/json", func(w io.Writer) { endless(w, `{"kind":"`, "x") }),
		"one endless name":   status(200, "application/json", func(w io.Writer) { endless(w, `{"items":[{"metadata":{"name":"`, "x") }),
		"endless protobuf":   status(200, "application/vnd.kubernetes.protobuf", func(w io.Writer) { endless(w, "k8s\x00\x12\xff\xff\xff\x7f", "\x12\x00") }),
		"YAML":               status(200, "application/yaml", func(w io.Writer) { endless(w, "a: &a [x]\n", "b: [*a, *a]\n") }),
		"endless error":      status(500, "application/json", func(w io.Writer) { endless(w, `{"kind":"Status","message":"`, "x") }),
		"endless plain text": status(403, "text/plain", func(w io.Writer) { endless(w, "", "no ") }),
		"another protocol": func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer connection.Close()
			endless(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "x")
		},
	}
	var peak int64
	for name, answer := range answers {
		c, _, _ := hostile(t, answer)
		for what, ask := range requests(c) {
			if testing.Short() && what != "list" && name != "gzip bomb" {
				continue // Each pair takes up to a second of a core.
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			err := ask(ctx)
			cancel()
			runtime.ReadMemStats(&after)
			taken := int64(after.TotalAlloc - before.TotalAlloc)
			if peak = max(peak, taken); taken > most {
				t.Errorf("%s, %s: %d MiB were allocated", name, what, taken>>20)
			}
			if err == nil && name != largest || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
	t.Logf("%d MiB at most for one request", peak>>20)
}

// TestListsAreBounded lists objects of a cluster that always has another page.
func TestListsAreBounded(t *testing.T) {
	page := func(items string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			kind := `"NodeList","apiVersion":"v1"`
			if strings.HasPrefix(r.URL.Path, "/apis/") {
				kind = `"ThingList","apiVersion":"example.org/v1"`
			}
			_, _ = fmt.Fprintf(w, `{"kind":%s,"metadata":{"continue":"%sx"},"items":[%s]}`, kind, r.URL.Query().Get("continue"), items)
		}
	}
	node := `{"metadata":{"name":"n"}}`
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"pages without an end":         {page(""), "list doesn't end: 90 pages with 0 objects"},
		"objects without an end":       {page(strings.TrimSuffix(strings.Repeat(node+",", 500), ",")), "list of more than 20000 objects"},
		"large objects without an end": {page(strings.TrimSuffix(strings.Repeat(`{"metadata":{"name":"`+strings.Repeat("n", 2<<20)+`"}},`, 10), ",")), "list of more than 268435456 bytes"},
		"an object that grows":         {page(`{"metadata":{"ownerReferences":[` + strings.Repeat(`{},`, 1<<19) + `{}]}}`), "needs more than 33554432 bytes of memory"},
	} {
		cluster, _, _ := hostile(t, c.answer)
		for what, ask := range requests(cluster) {
			if !strings.HasSuffix(what, " list") && what != "list" || what == "a plain list" {
				continue
			}
			if testing.Short() && what != "list" {
				continue // Each pair takes seconds of a core.
			}
			if name == "large objects without an end" && (testing.Short() || raceEnabled && what != "list") {
				continue // 256 MiB are read once, in a minute of a core with the race detector.
			}
			if err := ask(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
	}
}

// TestListOfALargeCluster lists 10,000 nodes of 15 KB each, page by page.
func TestListOfALargeCluster(t *testing.T) {
	nodes := 10_000
	if testing.Short() {
		nodes = 1000
	}
	asked := 0
	c, _, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		first := 0
		_, _ = fmt.Sscanf(r.URL.Query().Get("continue"), "%d", &first)
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		if first+500 < nodes {
			list.Continue = fmt.Sprint(first + 500)
		}
		for i := range 500 {
			list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", first+i), Annotations: map[string]string{"a": strings.Repeat("x", 15<<10)}}})
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(&list); err != nil {
			t.Error(err)
		}
	})
	found := 0
	err := List(t.Context(), c.Client.CoreV1().Nodes(), metav1.ListOptions{}, func(n *corev1.Node) error {
		if n.Name != fmt.Sprintf("n%d", found) {
			return fmt.Errorf("node %s", n.Name)
		}
		found++
		return nil
	})
	if err != nil || found != nodes || asked != nodes/500 {
		t.Errorf("%d nodes by %d requests: %v", found, asked, err)
	}
}

// TestSlowServerEndsWithTheCommand lets a server send single bytes.
func TestSlowServerEndsWithTheCommand(t *testing.T) {
	c, s, _ := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, "[")
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	})
	s.Timeout = 200 * time.Millisecond
	for name, ask := range requests(c) {
		if name == "version" {
			continue // Only this test calls it without a context.
		}
		ctx, cancel := s.Context(t.Context())
		done := make(chan error, 1)
		go func() { done <- ask(ctx) }()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s: it continues after the command's timeout", name)
		}
		cancel()
	}
}

// TestLogsOfLibraries captures what client-go, at its highest verbosity, and net/http log
// about a cluster's responses.
func TestLogsOfLibraries(t *testing.T) {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if err := flags.Set("v", "10"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = flags.Set("v", "0")
		klog.ClearLogger()
		log.SetOutput(os.Stderr)
	}()
	escape := "\x1b[2J"
	c, _, out := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", escape)
		w.Header().Set("Warning", `299 - "`+escape+`"`)
		w.Header().Set("Content-Length", "1000000")
		_, _ = io.WriteString(w, escape)
	})
	DiscardLogs()
	for _, ask := range requests(c) {
		if err := ask(t.Context()); err == nil {
			t.Error("no error")
		}
	}
	for range 100 {
		klog.ErrorS(errors.New(escape+"\nforged"), escape, "header", secretToken)
		klog.Warning(escape)
		log.Printf("%s\nforged", escape)
	}
	klog.Flush()
	if printed := out.String(); printed != "" {
		t.Errorf("printed %q", printed)
	}
}
