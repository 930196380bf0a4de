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
	"os/exec"
	"reflect"
	"strings"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

// kubeconfigTransport reloads a kubeconfig when it changes, which it checks at each
// request, as tokenTransport does, and every few seconds while connections are open. When
// the server or the credentials change, it closes open connections with all their
// requests; a change of the CA alone is left to caTransport. While the file is invalid,
// its last valid content stays in use.
type kubeconfigTransport struct {
	cfg   ClientConfig
	path  string
	asked *url.URL // the server in the URLs of requests
	fault errlog.Log

	mu      sync.Mutex
	mark    fileMark
	sum     [sha256.Size]byte // of the last content
	current *kubeconfigAccess
}

// kubeconfigAccess is the access that one content of the file defines.
type kubeconfigAccess struct {
	spec      kubeconfigSpec
	server    *url.URL
	transport http.RoundTripper
	ca        *caTransport
}

// kubeconfigSpec is the content of a kubeconfig without certificate-authority-data.
type kubeconfigSpec struct {
	cluster clientcmdapi.Cluster
	user    clientcmdapi.AuthInfo
}

func newKubeconfigTransport(c ClientConfig) (*kubeconfigTransport, error) {
	path := c.Access.Kubeconfig
	t := &kubeconfigTransport{cfg: c, path: path, fault: errlog.Log{
		Logger: c.Logger, Level: slog.LevelWarn, Failing: "kubeconfig is invalid, its last valid content stays in use", Over: "kubeconfig is valid again",
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

// access returns the access that a content defines.
func (t *kubeconfigTransport) access(content []byte) (*kubeconfigAccess, error) {
	base, source, spec, err := readKubeconfig(t.path, content)
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(base.Host)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", t.path, err)
	}
	a := &kubeconfigAccess{spec: spec, server: server}
	// The CA is reloaded every few seconds while connections are open, and the file is
	// checked with it.
	load := source.load
	source.load = func(ctx context.Context) ([]byte, error) {
		t.reload(ctx)
		return load(ctx)
	}
	a.transport, a.ca = t.cfg.reach(base, source)
	return a, nil
}

// reload returns the access that the file defines, or its last valid one.
func (t *kubeconfigTransport) reload(ctx context.Context) *kubeconfigAccess {
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
	t.sum = sum // of no content if it can't be read: the next content differs
	var fresh *kubeconfigAccess
	if err == nil {
		fresh, err = t.access(content)
	}
	t.fault.Note(context.WithoutCancel(ctx), err, "path", t.path)
	if err != nil || reflect.DeepEqual(fresh.spec, t.current.spec) {
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
	now := t.reload(req.Context())
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

// CloseIdleConnections closes idle connections.
func (t *kubeconfigTransport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	utilnet.CloseIdleConnectionsFor(t.current.ca)
}

// ParseKubeconfig parses a kubeconfig. The error names the file, and if known the line or
// field, but doesn't quote the content as a parser's error may: a misplaced token could be
// in it.
func ParseKubeconfig(path string, content []byte) (*clientcmdapi.Config, error) {
	loaded, err := clientcmd.Load(content)
	if err == nil {
		if field := Misplaced(loaded); field != "" {
			return nil, fmt.Errorf("load kubeconfig %s: it has a token as %s", path, field)
		}
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
		_, _ = fmt.Sscanf(after, "%d", &line) // stays 0 without a number
	}
	if line > 0 {
		return nil, fmt.Errorf("load kubeconfig %s: line %d: invalid YAML", path, line)
	}
	var encoded base64.CorruptInputError
	if errors.As(err, &encoded) {
		return nil, fmt.Errorf("load kubeconfig %s: a field whose name ends in -data is not base64", path)
	}
	return nil, fmt.Errorf("load kubeconfig %s: not valid YAML or JSON of kind Config, version v1", path)
}

// supported returns an error for credentials that this program can't use.
func supported(cfg *rest.Config) error {
	what := ""
	switch {
	case cfg.ExecProvider != nil:
		if _, err := exec.LookPath(cfg.ExecProvider.Command); err != nil {
			what = fmt.Sprintf("exec needs the program %q, which this image doesn't contain", cfg.ExecProvider.Command)
		}
	case cfg.AuthProvider != nil:
		what = "auth-provider is not supported"
	case cfg.Username != "" || cfg.Password != "":
		what = "username and password are not supported, by API servers neither"
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("its user: %s: use tokenFile, token, or client-certificate and client-key", what)
}

// readKubeconfig returns the configuration for the cluster of the current context, the
// source of its CA, and the content of the file.
func readKubeconfig(path string, content []byte) (*rest.Config, caSource, kubeconfigSpec, error) {
	loaded, err := ParseKubeconfig(path, content)
	if err != nil {
		return nil, caSource{}, kubeconfigSpec{}, err
	}
	var spec kubeconfigSpec
	if current := loaded.Contexts[loaded.CurrentContext]; current != nil {
		if c := loaded.Clusters[current.Cluster]; c != nil {
			spec.cluster = *c
			spec.cluster.CertificateAuthorityData = nil
		}
		if u := loaded.AuthInfos[current.AuthInfo]; u != nil {
			spec.user = *u
		}
	}
	if spec.cluster.Server != "" {
		if err := CheckServer(spec.cluster.Server); err != nil {
			return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: server: %w", path, err)
		}
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: %s", path, WithoutValues(err.Error(), &spec.cluster, &spec.user))
	}
	if err := supported(cfg); err != nil {
		return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if cfg.Insecure {
		return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: insecure-skip-tls-verify is not supported, name the certificate authority", path)
	}
	if err := requireHTTPS(cfg.Host); err != nil {
		return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if cfg.Proxy == nil {
		cfg.Proxy = environmentProxy()
	}
	switch {
	case len(cfg.CAData) > 0: // overrides the file, as in client-go
		if _, err := parseCerts(cfg.CAData); err != nil {
			return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: certificate-authority-data %w", path, err)
		}
		return cfg, caKubeconfig(path), spec, nil
	case cfg.CAFile != "":
		return cfg, caFile(cfg.CAFile), spec, nil
	default:
		return nil, caSource{}, kubeconfigSpec{}, fmt.Errorf("use kubeconfig %s: its cluster has neither certificate-authority-data nor certificate-authority, "+
			"and the CAs of the system are not trusted", path)
	}
}
