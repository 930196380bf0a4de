package kube

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// kubeconfigTransport reaches the server that a kubeconfig names now, with the
// credentials that it holds now. It looks at the file at each request, as
// tokenTransport does, and every few seconds while there are connections. When
// another server or other credentials are in it, connections that are open are
// closed, under whatever goes on; what is new in the authority alone is left to
// caTransport. While the file can't be used what it held before stays.
type kubeconfigTransport struct {
	cfg   ClientConfig
	path  string
	asked *url.URL // the server that requests are made for
	fault errlog.Log

	mu      sync.Mutex
	mark    fileMark
	sum     [sha256.Size]byte // of the content that was last looked at
	current *kubeconfigAccess
}

// kubeconfigAccess is what one content of the file says.
type kubeconfigAccess struct {
	said      said
	server    *url.URL
	transport http.RoundTripper
	ca        *caTransport
}

// said is what a kubeconfig says, but for the certificates that it holds itself.
type said struct {
	cluster clientcmdapi.Cluster
	user    clientcmdapi.AuthInfo
}

func newKubeconfigTransport(c ClientConfig) (*kubeconfigTransport, error) {
	path := c.Access.Kubeconfig
	t := &kubeconfigTransport{cfg: c, path: path, fault: errlog.Log{
		Logger: c.Logger, Level: slog.LevelWarn, Failing: "kubeconfig can't be used, what it held before stays", Over: "kubeconfig can be used again",
	}}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig %s: %w", path, err)
	}
	access, err := t.access(content)
	if err != nil {
		return nil, err
	}
	t.sum, t.current, t.asked = sha256.Sum256(content), access, access.server
	return t, nil
}

// access makes of a content what reaches the server.
func (t *kubeconfigTransport) access(content []byte) (*kubeconfigAccess, error) {
	base, source, what, err := readKubeconfig(t.path, content)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(base.Host)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", t.path, err)
	}
	a := &kubeconfigAccess{said: what, server: server}
	// The authority is loaded every few seconds while there are connections. The file
	// is looked at whenever it is.
	load := source.load
	source.load = func(ctx context.Context) ([]byte, error) {
		t.look(ctx)
		return load(ctx)
	}
	a.transport, a.ca = t.cfg.reach(base, source)
	return a, nil
}

// look returns what the file says now, or what it said when it could last be used.
func (t *kubeconfigTransport) look(ctx context.Context) *kubeconfigAccess {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mark.stays(t.path) {
		return t.current
	}
	content, err := os.ReadFile(t.path)
	if err != nil {
		t.mark.forget()
	}
	sum := sha256.Sum256(content)
	if err == nil && sum == t.sum || err != nil && t.fault.Err() != nil {
		return t.current
	}
	t.sum = sum // of nothing when it can't be read: what comes back is read anew
	var fresh *kubeconfigAccess
	if err == nil {
		fresh, err = t.access(content)
	}
	t.fault.Note(context.WithoutCancel(ctx), err, "path", t.path)
	if err != nil || reflect.DeepEqual(fresh.said, t.current.said) {
		return t.current
	}
	old := t.current
	t.current = fresh
	closed := old.ca.revoke()
	t.cfg.Logger.Info("kubeconfig replaced", "path", t.path, "server", fresh.server.Redacted(), "closed_connections", closed)
	return t.current
}

// RoundTrip implements http.RoundTripper.
func (t *kubeconfigTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	now := t.look(req.Context())
	if *now.server != *t.asked {
		req = req.Clone(req.Context())
		req.URL.Scheme, req.URL.Host, req.Host = now.server.Scheme, now.server.Host, now.server.Host
		req.URL.Path = otherPrefix(req.URL.Path, t.asked.Path, now.server.Path)
		if req.URL.RawPath != "" {
			req.URL.RawPath = otherPrefix(req.URL.RawPath, t.asked.EscapedPath(), now.server.EscapedPath())
		}
	}
	return now.transport.RoundTrip(req)
}

func otherPrefix(path, from, to string) string {
	return strings.TrimSuffix(to, "/") + strings.TrimPrefix(path, strings.TrimSuffix(from, "/"))
}

// CloseIdleConnections closes those that nothing uses.
func (t *kubeconfigTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	utilnet.CloseIdleConnectionsFor(t.current.ca)
}

// ParseKubeconfig returns what a kubeconfig says. The error names the file, and where the
// line or the field is known, these, but nothing of the content: a token may be where
// something else is expected, and a parser's error may quote it.
func ParseKubeconfig(path string, content []byte) (*clientcmdapi.Config, error) {
	loaded, err := clientcmd.Load(content)
	if err == nil {
		return loaded, nil
	}
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) && mistyped.Field != "" {
		// The field is of the struct, not of the content; a number may follow its type.
		kind, _, _ := strings.Cut(mistyped.Value, " ")
		return nil, fmt.Errorf("load kubeconfig %s: %s can't be of type %s", path, mistyped.Field, kind)
	}
	var line int
	if _, after, found := strings.Cut(err.Error(), "yaml: line "); found {
		_, _ = fmt.Sscanf(after, "%d", &line) // Zero stays without one.
	}
	if line > 0 {
		return nil, fmt.Errorf("load kubeconfig %s: line %d: no valid YAML", path, line)
	}
	var encoded base64.CorruptInputError
	if errors.As(err, &encoded) {
		return nil, fmt.Errorf("load kubeconfig %s: a field whose name ends in -data isn't base64", path)
	}
	return nil, fmt.Errorf("load kubeconfig %s: no valid YAML or JSON of the kind Config, version v1", path)
}

// readKubeconfig returns how to reach the cluster of the current context, where its
// authority comes from, and what the file says of both.
func readKubeconfig(path string, content []byte) (*rest.Config, caSource, said, error) {
	loaded, err := ParseKubeconfig(path, content)
	if err != nil {
		return nil, caSource{}, said{}, err
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, caSource{}, said{}, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if cfg.Insecure {
		return nil, caSource{}, said{}, fmt.Errorf("use kubeconfig %s: insecure-skip-tls-verify is not supported, name the certificate authority", path)
	}
	if err := requireHTTPS(cfg.Host); err != nil {
		return nil, caSource{}, said{}, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	var what said
	if current := loaded.Contexts[loaded.CurrentContext]; current != nil {
		if c := loaded.Clusters[current.Cluster]; c != nil {
			what.cluster = *c
			what.cluster.CertificateAuthorityData = nil
		}
		if u := loaded.AuthInfos[current.AuthInfo]; u != nil {
			what.user = *u
		}
	}
	switch {
	case len(cfg.CAData) > 0: // wins over the file, as in client-go
		if _, err := parseCerts(cfg.CAData); err != nil {
			return nil, caSource{}, said{}, fmt.Errorf("use kubeconfig %s: certificate-authority-data %w", path, err)
		}
		return cfg, caKubeconfig(path), what, nil
	case cfg.CAFile != "":
		return cfg, caFile(cfg.CAFile), what, nil
	default:
		return nil, caSource{}, said{}, fmt.Errorf("use kubeconfig %s: its cluster has neither certificate-authority-data nor certificate-authority, "+
			"and the authorities of the system are not trusted instead", path)
	}
}
