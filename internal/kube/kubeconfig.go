package kube

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

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

// readKubeconfig returns the access that the current context defines, and its authority. A program
// reads it once; files that it names, of a token or of certificates, are read again.
func readKubeconfig(path string) (*rest.Config, caSource, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, caSource{}, fmt.Errorf("load kubeconfig %s: %w", path, err)
	}
	loaded, err := ParseKubeconfig(path, content)
	if err != nil {
		return nil, caSource{}, err
	}
	cfg, authority, err := currentAccess(path, loaded)
	if err != nil {
		return nil, caSource{}, fmt.Errorf("use kubeconfig %s: %w", path, err)
	}
	return cfg, authority, nil
}

func currentAccess(path string, loaded *clientcmdapi.Config) (*rest.Config, caSource, error) {
	cluster, user := &clientcmdapi.Cluster{}, &clientcmdapi.AuthInfo{}
	if current := loaded.Contexts[loaded.CurrentContext]; current != nil {
		cluster = cmp.Or(loaded.Clusters[current.Cluster], cluster)
		user = cmp.Or(loaded.AuthInfos[current.AuthInfo], user)
	}
	if cluster.Server != "" {
		if err := CheckServer(cluster.Server); err != nil {
			return nil, caSource{}, fmt.Errorf("server: %w", err)
		}
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
	if err != nil {
		return nil, caSource{}, errors.New(WithoutValues(err.Error(), cluster, user))
	}
	if err := supported(cfg); err != nil {
		return nil, caSource{}, err
	}
	if cfg.Insecure {
		return nil, caSource{}, errors.New("insecure-skip-tls-verify is not supported, name the certificate authority")
	}
	if err := requireHTTPS(cfg.Host); err != nil {
		return nil, caSource{}, err
	}
	if cfg.Proxy == nil {
		cfg.Proxy = environmentProxy()
	}
	switch {
	case len(cfg.CAData) > 0: // overrides the file, as in client-go
		return cfg, caGiven(path, cfg.CAData), nil
	case cfg.CAFile != "":
		return cfg, caFile(cfg.CAFile), nil
	default:
		return nil, caSource{}, errors.New("its cluster has neither certificate-authority-data nor certificate-authority, and the CAs of the system are not trusted")
	}
}
