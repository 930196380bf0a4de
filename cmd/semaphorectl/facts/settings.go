package facts

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// mostRemotes is how many neighbours one cluster can have here: objects are made for each.
const mostRemotes = 250

// Settings are those of the ConfigMap that the programs of one cluster read, by variable.
// Those of a cluster come from ParseSettings.
type Settings map[string]string

// InvalidError says that a value of a cluster can't be what it stands for.
type InvalidError struct {
	Object, Key string
	Err         error
}

// Error names the object, the key and the value.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s: %v", e.Object, e.Key, e.Err)
}

// Unwrap returns what is wrong with the value.
func (e *InvalidError) Unwrap() error { return e.Err }

// IsInvalid reports whether an error is an InvalidError: a cluster has been read, and has
// something that can't be.
func IsInvalid(err error) bool {
	_, is := errors.AsType[*InvalidError](err)
	return is
}

// CheckName refuses a name of an object that no API server accepts: names become words of
// commands that people are to run, where quoting doesn't keep a word from being an option.
func CheckName(object, key, name string) error {
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return &InvalidError{object, key, fmt.Errorf("%.80q: %s", name, faults[0])}
	}
	return nil
}

// ParseSettings returns the content of a ConfigMap of this name as settings, if all that
// becomes something else here is what it must be: names of clusters, service prefixes,
// subnets, ports and addresses of API servers. An error is an InvalidError.
func ParseSettings(configMap string, data map[string]string) (Settings, error) {
	var failed error
	check := func(key string, err error) {
		if err != nil && failed == nil {
			failed = &InvalidError{"ConfigMap " + configMap, printable.Text(key, printable.Short), err}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if len(validation.IsConfigMapKey(key)) > 0 {
			check(key, fmt.Errorf("no ConfigMap has such a key"))
		}
	}
	own := data["SEMAPHORE_CLUSTER_NAME"]
	if own != "" {
		_, err := cluster.ParseName(own)
		check("SEMAPHORE_CLUSTER_NAME", err)
	}
	const list = "SEMAPHORE_REMOTES"
	words := remoteWords(data[list])
	if len(words) > mostRemotes {
		check(list, fmt.Errorf("%d remotes, and there can be %d", len(words), mostRemotes))
		words = nil
	}
	if domain := data["SEMAPHORE_POLICY_LABEL_DOMAIN"]; domain != "" && len(validation.IsDNS1123Subdomain(domain)) > 0 {
		check("SEMAPHORE_POLICY_LABEL_DOMAIN", fmt.Errorf("%.80q is no domain", domain))
	}
	seen := map[string]bool{}
	for _, word := range words {
		name, err := cluster.ParseName(word)
		switch {
		case err != nil:
		case word == own:
			err = fmt.Errorf("%q is the name of this cluster", word)
		case seen[word]:
			err = fmt.Errorf("%q is listed twice", word)
		}
		check(list, err)
		if err != nil {
			continue
		}
		seen[word] = true
		for key, parse := range remoteSettings {
			if value := data[name.Variables()+key]; value != "" {
				check(name.Variables()+key, parse(value))
			}
		}
	}
	if failed != nil {
		return nil, failed
	}
	return maps.Clone(data), nil
}

// remoteSettings say what is wrong with those settings of a remote that become something
// else here.
var remoteSettings = map[string]func(value string) error{
	"_SERVICE_PREFIX": func(value string) error { _, err := cluster.ParsePrefix(value); return err },
	PodSubnets:        func(value string) error { _, err := Prefixes(value); return err },
	NodeSubnets:       func(value string) error { _, err := Prefixes(value); return err },
	"_API_URL":        func(value string) error { _, err := ParseServer(value); return err },
	"_WG_LISTEN_PORT": func(value string) error {
		if port, err := strconv.Atoi(value); err != nil || port < 1 || port > 65535 {
			return fmt.Errorf("%.20q is no port", value)
		}
		return nil
	},
}

// remoteWords splits a list of remotes as the programs do.
func remoteWords(text string) []string {
	if text == "" {
		return nil
	}
	words := strings.Split(text, ",")
	for i := range words {
		words[i] = strings.TrimSpace(words[i])
	}
	return words
}

// Remotes are the clusters that are configured.
func (s Settings) Remotes() []cluster.Name {
	var names []cluster.Name
	for _, word := range remoteWords(s["SEMAPHORE_REMOTES"]) {
		if name, err := cluster.ParseName(word); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// The settings of a remote that bound where its pods and nodes are, behind what the names of
// all of its settings begin with.
const (
	PodSubnets  = "_POD_SUBNETS"
	NodeSubnets = "_NODE_SUBNETS"
)

// Prefixes are those of a setting of a remote. ParseSettings refuses what can't be read, and
// so there are none then.
func (s Settings) Prefixes(remote cluster.Name, key string) []netip.Prefix {
	prefixes, err := Prefixes(s[remote.Variables()+key])
	if err != nil {
		return nil
	}
	return prefixes
}

// ServicePrefix is what the names of services mirrored from a remote begin with.
func (s Settings) ServicePrefix(remote cluster.Name) (string, error) {
	return cluster.ParsePrefix(cmp.Or(s[remote.Variables()+"_SERVICE_PREFIX"], string(remote)))
}

// ParseServer returns the address of an API server, which begins with https:// and has a
// host, and no user, query or fragment.
func ParseServer(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || len(text) > printable.Short ||
		strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		// What is written may hold a password.
		return "", fmt.Errorf("no address of an API server that begins with https:// and a host")
	}
	return strings.TrimSuffix(text, "/"), nil
}
