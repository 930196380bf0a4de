package kube

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfigSpec is the content of a kubeconfig without certificate-authority-data.
type kubeconfigSpec struct {
	cluster clientcmdapi.Cluster
	user    clientcmdapi.AuthInfo
}

// kubeconfigSource returns the current context of a kubeconfig as a source. It returns an
// error if the kubeconfig can't be used.
func kubeconfigSource(path string) (source, error) {
	first, err := readKubeconfig(path)
	if err != nil {
		return source{}, err
	}
	load := func() (*access, error) {
		read, err := readKubeconfig(path)
		if err != nil {
			return nil, err
		}
		cfg := read.cfg
		if len(cfg.CAData) == 0 { // overrides the file, as in client-go
			if cfg.CAData, err = os.ReadFile(cfg.CAFile); err != nil {
				return nil, fmt.Errorf("load certificate authority: %w", err)
			}
		}
		if read.certs, err = parseCerts(cfg.CAData); err != nil {
			return nil, fmt.Errorf("use kubeconfig %s: its certificate authority %w", path, err)
		}
		return read, nil
	}
	return source{
		name: path, period: filePeriod, load: load, asked: first.server,
		failing: "kubeconfig is invalid, its last valid content stays in use", over: "kubeconfig is valid again",
	}, nil
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

// readKubeconfig returns the access that the current context defines, without its CA
// certificates.
func readKubeconfig(path string) (*access, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig %s: %w", path, err)
	}
	loaded, err := ParseKubeconfig(path, content)
	if err != nil {
		return nil, err
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
			return nil, fmt.Errorf("use kubeconfig %s: server: %w", path, err)
		}
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %s", path, WithoutValues(err.Error(), &spec.cluster, &spec.user))
	}
	if err := supported(cfg); err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if cfg.Insecure {
		return nil, fmt.Errorf("use kubeconfig %s: insecure-skip-tls-verify is not supported, name the certificate authority", path)
	}
	if err := requireHTTPS(cfg.Host); err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if len(cfg.CAData) == 0 && cfg.CAFile == "" {
		return nil, fmt.Errorf("use kubeconfig %s: its cluster has neither certificate-authority-data nor certificate-authority, "+
			"and the CAs of the system are not trusted", path)
	}
	server, err := url.Parse(cfg.Host)
	if err != nil {
		return nil, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	if cfg.Proxy == nil {
		cfg.Proxy = environmentProxy()
	}
	return &access{cfg: cfg, server: server, spec: spec}, nil
}
