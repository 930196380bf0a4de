package inspect

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

	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// maxRemotes bounds the remotes of a cluster: objects are created for each.
const maxRemotes = 250

// Settings is the content of the ConfigMap of a cluster's programs, by variable. Settings
// that were read from a cluster come from ParseSettings.
type Settings map[string]string

// InvalidError is the error for an invalid value in an object of a cluster.
type InvalidError struct {
	Object, Key string
	Err         error
}

// Error returns the object, the key and what is wrong with the value.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s: %s: %v", e.Object, e.Key, e.Err)
}

// Unwrap returns what is wrong with the value.
func (e *InvalidError) Unwrap() error { return e.Err }

// IsInvalid reports whether an error is an InvalidError.
func IsInvalid(err error) bool {
	_, is := errors.AsType[*InvalidError](err)
	return is
}

// CheckName rejects names of objects that no API server accepts. Names become words of
// commands for people to run, where a quoted word can still be an option.
func CheckName(object, key, name string) error {
	if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
		return &InvalidError{object, key, fmt.Errorf("%.80q: %s", name, faults[0])}
	}
	return nil
}

// ParseSettings returns the content of a ConfigMap as settings. It validates the values
// that are used here: names of clusters, service prefixes, subnets, ports, labels of sets and addresses of
// API servers. An error is an InvalidError.
func ParseSettings(configMap string, data map[string]string) (Settings, error) {
	var failed error
	check := func(key string, err error) {
		if err != nil && failed == nil {
			failed = &InvalidError{"ConfigMap " + configMap, printable.Text(key, printable.Short), err}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if len(validation.IsConfigMapKey(key)) > 0 {
			check(key, fmt.Errorf("not a valid key of a ConfigMap"))
		}
	}
	if left := remoteWords(data[departed]); len(left) > maxRemotes {
		check(departed, fmt.Errorf("%d clusters, more than %d", len(left), maxRemotes))
	} else {
		for _, word := range left {
			_, err := cluster.ParseName(word)
			check(departed, err)
		}
	}
	own := data["SEMAPHORE_CLUSTER_NAME"]
	if own != "" {
		_, err := cluster.ParseName(own)
		check("SEMAPHORE_CLUSTER_NAME", err)
	}
	const list = "SEMAPHORE_REMOTES"
	words := remoteWords(data[list])
	if len(words) > maxRemotes {
		check(list, fmt.Errorf("%d remotes, more than %d", len(words), maxRemotes))
		words = nil
	}
	if text := data[PodSubnetsMap]; text != "" {
		check(PodSubnetsMap, checkSubnetMap(text))
	}
	if text := data[MaxServices]; text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > MostServices {
			err = fmt.Errorf("%.20q is not a number from 1 to %d", text, MostServices)
		}
		check(MaxServices, err)
	}
	if domain := data[labelDomain]; domain != "" && len(validation.IsDNS1123Subdomain(domain)) > 0 {
		check(labelDomain, fmt.Errorf("%.80q is not a domain", domain))
	}
	if mark := data[managedBy]; len(validation.IsValidLabelValue(mark)) > 0 {
		check(managedBy, fmt.Errorf("%.80q is not the value of a label", mark))
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

// remoteSettings validate the settings of a remote that are used here.
var remoteSettings = map[string]func(value string) error{
	"_SERVICE_PREFIX": func(value string) error { _, err := cluster.ParsePrefix(value); return err },
	PodSubnets:        func(value string) error { _, err := Prefixes(value); return err },
	SubnetMap:         checkSubnetMap,
	NodeSubnets:       func(value string) error { _, err := Prefixes(value); return err },
	ImportNamespaces:  func(value string) error { return brief(new(config.Namespaces).Decode(value)) },
	"_API_URL":        func(value string) error { _, err := ParseServer(value); return err },
	ProxyURL:          func(value string) error { _, err := config.ParseProxy(value); return err },
	"_WG_LISTEN_PORT": func(value string) error {
		if port, err := strconv.Atoi(value); err != nil || port < 1 || port > 65535 {
			return fmt.Errorf("%.20q is not a port", value)
		}
		return nil
	},
}

func checkSubnetMap(text string) error {
	if len(text) > maxMap {
		return fmt.Errorf("%d bytes, more than %d", len(text), maxMap)
	}
	return brief(new(config.SubnetMap).Decode(text))
}

// brief shortens an error, which has a line for each item of a list.
func brief(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(printable.Text(err.Error(), printable.Short))
}

// remoteWords splits SEMAPHORE_REMOTES like the programs.
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

// The settings of the labels of network sets.
const (
	labelDomain = "SEMAPHORE_POLICY_LABEL_DOMAIN"
	managedBy   = "SEMAPHORE_POLICY_MANAGED_BY"
)

// LabelDomain returns the domain of the labels of network sets and their pods.
func (s Settings) LabelDomain() string { return cmp.Or(s[labelDomain], "policy.semaphore.uw.io") }

// ManagedBy returns the value of the label managed-by of network sets.
func (s Settings) ManagedBy() string { return cmp.Or(s[managedBy], NetworkPolicy) }

// Remotes returns the configured remotes.
func (s Settings) Remotes() []cluster.Name { return s.names("SEMAPHORE_REMOTES") }

func (s Settings) names(list string) (names []cluster.Name) {
	for _, word := range remoteWords(s[list]) {
		if name, err := cluster.ParseName(word); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// departed is the variable of the clusters that have left on purpose: their endpoints, mirrors
// and network sets have no grace period.
const departed = "SEMAPHORE_DEPARTED_REMOTES"

// Departed returns the clusters that have left.
func (s Settings) Departed() []cluster.Name { return s.names(departed) }

// Depart adds clusters to those that have left. The list has at most the names of maxRemotes.
func (s Settings) Depart(names []cluster.Name) {
	all := append(s.Departed(), names...)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > maxRemotes {
		all = names
	}
	s.depart(all)
}

// Return removes a cluster from those that have left.
func (s Settings) Return(name cluster.Name) {
	s.depart(slices.DeleteFunc(s.Departed(), func(n cluster.Name) bool { return n == name }))
}

func (s Settings) depart(names []cluster.Name) {
	if len(names) == 0 {
		delete(s, departed)
		return
	}
	words := make([]string, len(names))
	for i, name := range names {
		words[i] = string(name)
	}
	s[departed] = strings.Join(words, ",")
}

// PodSubnetsMap is the variable of the virtual subnets by which other clusters know a cluster's
// pods.
const PodSubnetsMap = manifests.PodSubnetsMap

// SubnetMap returns the virtual subnets of a cluster's pods; none if the setting is invalid,
// which ParseSettings rejects.
func (s Settings) SubnetMap() config.SubnetMap {
	var m config.SubnetMap
	if text := s[PodSubnetsMap]; text == "" || len(text) > maxMap || m.Decode(text) != nil {
		return nil
	}
	return m
}

// MaxServices is the variable that bounds the Services of all remotes, MostServices its largest
// value.
const (
	MaxServices  = "SEMAPHORE_MIRROR_MAX_SERVICES"
	MostServices = 10_000_000
)

// Suffixes of the variables that bound a remote's pods, nodes and exports, of the map of its
// virtual subnets, and of the proxy to its API server.
const (
	ProxyURL         = "_PROXY_URL"
	PodSubnets       = "_POD_SUBNETS"
	NodeSubnets      = "_NODE_SUBNETS"
	SubnetMap        = "_POD_SUBNETS_MAP"
	ImportNamespaces = "_IMPORT_NAMESPACES"
)

// Prefixes returns the prefixes of a remote's setting; none if it is invalid, which
// ParseSettings rejects.
func (s Settings) Prefixes(remote cluster.Name, key string) []netip.Prefix {
	prefixes, err := Prefixes(s[remote.Variables()+key])
	if err != nil {
		return nil
	}
	return prefixes
}

// ServicePrefix returns the name prefix of services mirrored from a remote.
func (s Settings) ServicePrefix(remote cluster.Name) (string, error) {
	return cluster.ParsePrefix(cmp.Or(s[remote.Variables()+"_SERVICE_PREFIX"], string(remote)))
}

// ParseServer validates the URL of an API server: https:// with a host, and without user,
// query or fragment.
func ParseServer(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || len(text) > printable.Short ||
		strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		// The error omits the text, which may contain a password.
		return "", fmt.Errorf("not the URL of an API server that begins with https:// and a host")
	}
	return strings.TrimSuffix(text, "/"), nil
}
