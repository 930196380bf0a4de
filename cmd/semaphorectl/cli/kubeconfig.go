package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	// User entries with auth-provider; exec plugins need no import.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// rules are kubectl's rules for which kubeconfig files are read.
func (s *Session) rules() *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.kubeconfig
	return rules
}

// load reads the kubeconfig. Errors name the file and omit its content: a token may stand
// where another value is expected.
func (s *Session) load() (*clientcmdapi.Config, error) {
	rules := s.rules()
	config, err := rules.Load()
	if err == nil && len(config.Contexts) > 0 {
		if where := misplaced(config); where != "" {
			return nil, fmt.Errorf("the kubeconfig has a token as %s", where)
		}
		return config, nil
	}
	files := rules.GetLoadingPrecedence()
	if rules.ExplicitPath != "" {
		files = []string{rules.ExplicitPath}
	}
	var exist []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && file != rules.ExplicitPath {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the kubeconfig: %w", err)
		}
		if _, err := kube.ParseKubeconfig(file, content); err != nil {
			return nil, err
		}
		exist = append(exist, file)
	}
	switch {
	case len(exist) == 0:
		return nil, fmt.Errorf("there is no kubeconfig: %s doesn't exist; select one with --kubeconfig or the variable KUBECONFIG", strings.Join(files, " or "))
	case err == nil:
		return nil, fmt.Errorf("the kubeconfig %s has no contexts; select another one with --kubeconfig or the variable KUBECONFIG", And(exist...))
	default:
		return nil, errors.New("read the kubeconfig: each file is valid, and they can't be merged")
	}
}

// jwt is the form of the tokens of API servers and identity providers
// (https://www.rfc-editor.org/rfc/rfc7519).
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}`)

// misplaced returns the field of a kubeconfig that has a token and whose value is printed;
// empty: none has.
func misplaced(config *clientcmdapi.Config) string {
	for name, c := range config.Contexts {
		if jwt.MatchString(name) || jwt.MatchString(c.Cluster) || jwt.MatchString(c.AuthInfo) {
			return "a name"
		}
	}
	for _, u := range config.AuthInfos {
		if e := u.Exec; e != nil {
			for field, value := range map[string]string{"command": e.Command, "apiVersion": e.APIVersion, "interactiveMode": string(e.InteractiveMode)} {
				if jwt.MatchString(value) {
					return field + " of exec"
				}
			}
		}
		if p := u.AuthProvider; p != nil && jwt.MatchString(p.Config["idp-issuer-url"]) {
			return "idp-issuer-url of auth-provider"
		}
	}
	return ""
}

// context returns the configuration of a context. Errors omit all values of the kubeconfig
// but names.
func (s *Session) context(config *clientcmdapi.Config, name string) (*rest.Config, error) {
	c := config.Contexts[name]
	cluster, user := config.Clusters[c.Cluster], config.AuthInfos[c.AuthInfo]
	switch {
	case cluster == nil:
		return nil, fmt.Errorf("its cluster %q isn't in the kubeconfig", c.Cluster)
	case user == nil && c.AuthInfo != "":
		return nil, fmt.Errorf("its user %q isn't in the kubeconfig", c.AuthInfo)
	case user == nil:
		user = &clientcmdapi.AuthInfo{}
	}
	if err := checkServer(cluster.Server); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	made, err := clientcmd.NewNonInteractiveClientConfig(*config, name, nil, s.rules()).ClientConfig()
	if err == nil {
		// It reads the files of certificates and keys, and checks the user's plugin.
		_, err = rest.TransportFor(made)
	}
	if err != nil {
		return nil, errors.New(withoutValues(err.Error(), *cluster, *user))
	}
	return made, nil
}

// checkServer returns an error unless a server is an address: the address is printed.
func checkServer(server string) error {
	u, err := url.Parse(server)
	if err == nil && u.Scheme == "" {
		u, err = url.Parse("https://" + server) // As client-go does.
	}
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || !isHost(u.Hostname()):
		return errors.New("not the URL of an API server")
	case u.User != nil:
		return errors.New("a URL with a user or password is not supported")
	}
	return nil
}

// isHost reports whether a text is an IP address or a DNS name. Tokens are none: their parts
// are longer than labels.
func isHost(text string) bool {
	if _, err := netip.ParseAddr(text); err == nil {
		return true
	}
	return text != "" && len(text) <= 253 && !slices.ContainsFunc(strings.Split(text, "."), func(label string) bool {
		return len(label) > 63 || strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != ""
	})
}

// withoutValues replaces the values of a cluster and a user of a kubeconfig by the names of
// their fields.
func withoutValues(text string, cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo) string {
	type field struct{ name, value string }
	fields := []field{
		{"server", cluster.Server}, {"tls-server-name", cluster.TLSServerName}, {"certificate-authority", cluster.CertificateAuthority},
		{"proxy-url", cluster.ProxyURL}, {"client-certificate", user.ClientCertificate}, {"client-key", user.ClientKey},
		{"token", user.Token}, {"tokenFile", user.TokenFile}, {"as", user.Impersonate}, {"as-uid", user.ImpersonateUID},
		{"username", user.Username}, {"password", user.Password},
	}
	for _, group := range user.ImpersonateGroups {
		fields = append(fields, field{"as-groups", group})
	}
	if p := user.AuthProvider; p != nil {
		fields = append(fields, field{"auth-provider name", p.Name})
		for key, value := range p.Config {
			fields = append(fields, field{"auth-provider " + key, value})
		}
	}
	if e := user.Exec; e != nil {
		fields = append(fields, field{"exec apiVersion", e.APIVersion}, field{"interactiveMode", string(e.InteractiveMode)})
		for _, arg := range e.Args {
			fields = append(fields, field{"exec argument", arg})
		}
		for _, v := range e.Env {
			fields = append(fields, field{"exec variable", v.Value})
		}
	}
	slices.SortFunc(fields, func(a, b field) int { return cmp.Or(len(b.value)-len(a.value), strings.Compare(a.name, b.name)) })
	for _, f := range fields {
		// Shorter ones are parts of words, such as a user "a".
		if len(f.value) > 3 {
			text = strings.ReplaceAll(text, f.value, "<"+f.name+">")
		}
	}
	return text
}
