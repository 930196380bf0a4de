package kube

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// jwt is the form of the tokens of API servers and identity providers
// (https://www.rfc-editor.org/rfc/rfc7519).
var jwt = regexp.MustCompile(`eyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}`)

// Misplaced returns the field of a kubeconfig that has a token and whose value is printed;
// empty: none has.
func Misplaced(config *clientcmdapi.Config) string {
	fields := map[string]string{}
	for name, c := range config.Contexts {
		fields["a name"] += " " + name + " " + c.Cluster + " " + c.AuthInfo
	}
	for name, c := range config.Clusters {
		fields["a name"] += " " + name
		fields["certificate-authority"] += " " + c.CertificateAuthority
		fields["tls-server-name"] += " " + c.TLSServerName
	}
	for name, u := range config.AuthInfos {
		fields["a name"] += " " + name
		fields["client-certificate"] += " " + u.ClientCertificate
		fields["client-key"] += " " + u.ClientKey
		fields["tokenFile"] += " " + u.TokenFile
		if e := u.Exec; e != nil {
			fields["command of exec"] += " " + e.Command
			fields["apiVersion of exec"] += " " + e.APIVersion
			fields["interactiveMode of exec"] += " " + string(e.InteractiveMode)
		}
		if p := u.AuthProvider; p != nil {
			fields["name of auth-provider"] += " " + p.Name
			fields["idp-issuer-url of auth-provider"] += " " + p.Config["idp-issuer-url"]
		}
	}
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if jwt.MatchString(fields[field]) {
			return field
		}
	}
	return ""
}

// CheckServer returns an error unless a server is an address: the address is printed.
func CheckServer(server string) error {
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

// WithoutValues replaces the values of a cluster and a user of a kubeconfig by the names of
// their fields.
func WithoutValues(text string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) string {
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
