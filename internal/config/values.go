package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// faults collects the errors of a configuration.
type faults struct{ all []error }

func (f *faults) add(origin, format string, args ...any) {
	f.all = append(f.all, fmt.Errorf("%s: %w", origin, fmt.Errorf(format, args...)))
}

// Bytes is a number of bytes, in text one of Kubernetes' quantities.
type Bytes int64

// Decode implements envconfig.Decoder.
func (b *Bytes) Decode(text string) error {
	q, err := resource.ParseQuantity(text)
	*b = Bytes(q.Value())
	return err
}

// MTU is the MTU of a device; 0 is auto.
type MTU int

// Decode implements envconfig.Decoder.
func (m *MTU) Decode(text string) error {
	if *m = 0; strings.EqualFold(text, "auto") {
		return nil
	}
	n, err := strconv.Atoi(text)
	if n == 0 {
		return cmp.Or(err, strconv.ErrRange)
	}
	*m = MTU(n)
	return err
}

// Names are names of clusters, in text comma-separated.
type Names []string

// Decode implements envconfig.Decoder. The error joins those of all items.
func (n *Names) Decode(text string) error {
	*n = nil
	var errs []error
	for item := range strings.SplitSeq(text, ",") {
		name, err := cluster.ParseName(strings.TrimSpace(item))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		*n = append(*n, string(name))
	}
	return errors.Join(errs...)
}

// Namespaces are names of namespaces, or their beginnings before a "*", in text comma-separated.
type Namespaces []string

// systemNamespaces is the beginning of the names of Kubernetes' own namespaces.
const systemNamespaces = "kube-"

// Decode implements envconfig.Decoder. The error joins those of all items.
func (n *Namespaces) Decode(text string) error {
	*n = nil
	if text == "" {
		return nil
	}
	var errs []error
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		// A beginning may end with a dash.
		name := item
		if begin, is := strings.CutSuffix(item, "*"); is {
			name = begin + "x"
		}
		if len(validation.IsDNS1123Label(name)) > 0 {
			errs = append(errs, fmt.Errorf("%q is neither the name of a namespace nor the beginning of one, such as team-*", item))
			continue
		}
		*n = append(*n, item)
	}
	return errors.Join(errs...)
}

// String returns the text.
func (n Namespaces) String() string { return strings.Join(n, ",") }

// Contains reports whether a namespace is meant.
func (n Namespaces) Contains(namespace string) bool {
	return slices.ContainsFunc(n, func(item string) bool {
		begin, is := strings.CutSuffix(item, "*")
		if !is {
			return namespace == item
		}
		system := strings.HasPrefix(namespace, systemNamespaces) && !strings.HasPrefix(begin, systemNamespaces)
		return strings.HasPrefix(namespace, begin) && !system
	})
}

// Subnets are prefixes, masked and sorted, in text comma-separated.
type Subnets []netip.Prefix

// Decode implements envconfig.Decoder. The error joins those of all items.
func (p *Subnets) Decode(text string) error {
	*p = nil
	var errs []error
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			errs = append(errs, fmt.Errorf("%q is not a subnet such as 10.4.0.0/16 or fd00:4::/48", item))
			continue
		}
		*p = append(*p, prefix.Masked())
	}
	slices.SortFunc(*p, netip.Prefix.Compare)
	return errors.Join(errs...)
}

// longestProxy bounds the URL of a proxy.
const longestProxy = 300

// ParseProxy parses the URL of a proxy, as client-go supports them. It has no user and password:
// settings are in ConfigMaps, and in what programs report. An error doesn't quote the text.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) || u.Hostname() == "" || len(text) > longestProxy,
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("not the URL of a proxy, http, https or socks5, such as http://10.66.2.9:3128")
	case u.User != nil:
		return nil, errors.New("user and password are not supported in the URL, because settings are stored and shown as text; put the URL into a kubeconfig as its proxy-url")
	}
	return u, nil
}

// The functions below check values, and add errors to f.

// kubeMarks are the bits by which kube-proxy and kubelets mark packets to masquerade and to
// drop (iptablesMasqueradeBit and iptablesDropBit, 14 and 15).
const kubeMarks = 0xc000

// within reports whether n is between the two limits, inclusive.
func within[N ~int | ~int64](n N, limits []string) bool {
	least, most := resource.MustParse(limits[0]), resource.MustParse(limits[1])
	return least.Value() <= int64(n) && int64(n) <= most.Value()
}

// fingerprints parses SHA-256 fingerprints, comma-separated, with or without colons as
// openssl and others write them.
func (f *faults) fingerprints(origin, text string) string {
	var all []string
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		sum := strings.ToLower(strings.ReplaceAll(item, ":", ""))
		if decoded, err := hex.DecodeString(sum); err != nil || len(decoded) != sha256.Size {
			f.add(origin, "%q is not a SHA-256 fingerprint in hexadecimal, which has 64 digits", item)
			continue
		}
		all = append(all, sum)
	}
	return strings.Join(all, ",")
}

func (f *faults) oneOf(origin, text string, values []string) string {
	lower := strings.ToLower(text)
	if !slices.Contains(values, lower) {
		f.add(origin, "%q is not one of %s", text, strings.Join(values, ", "))
		return ""
	}
	return lower
}

// check checks the syntax of a text, and returns it in canonical form.
func (f *faults) check(origin, text, kind string) string {
	var complaints []string // of one of apimachinery's functions
	switch kind {
	case "label":
		complaints = validation.IsDNS1123Label(text)
	case "cluster":
		if _, err := cluster.ParseName(text); err != nil {
			f.add(origin, "%w", err)
		}
	case "service prefix":
		if _, err := cluster.ParsePrefix(text); err != nil {
			f.add(origin, "%w", err)
		}
	case "subdomain":
		complaints = validation.IsDNS1123Subdomain(text)
	case "label value":
		complaints = validation.IsValidLabelValue(text)
	case "selector":
		if _, err := labels.Parse(text); err != nil {
			f.add(origin, "%q is not a label selector: %w", text, err)
		}
	case "https":
		switch u, err := url.Parse(text); {
		case err != nil || u.Scheme != "https" || u.Host == "":
			// The text may contain a password, which a parser's error would quote.
			f.add(origin, "not a URL that begins with https:// and a host")
		case u.User != nil:
			f.add(origin, "user and password are not supported in the URL")
		}
	case "proxy":
		if _, err := ParseProxy(text); err != nil {
			f.add(origin, "%w", err)
		}
	case "host:port":
		_, port, err := net.SplitHostPort(text)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			f.add(origin, "%q is not an address and port such as :8080 or 127.0.0.1:8080", text)
		}
	case "ip":
		if ip, err := netip.ParseAddr(text); err != nil || ip.IsUnspecified() {
			f.add(origin, "%q is not an IP address of this node", text)
		}
	case "endpoint":
		if _, err := endpoint.Parse(text); err != nil {
			f.add(origin, "%q: %w", text, err)
		}
	case "source": // of routes
		if text == RouteSrcAuto || text == RouteSrcNone {
			break
		}
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() {
			f.add(origin, "%q is neither auto, nor none, nor an address of this node", text)
		}
		text = ip.Unmap().String()
	case "pod prefixes":
		text = f.podPrefixes(origin, text)
	case "path":
		if !filepath.IsAbs(text) {
			f.add(origin, "%q is not an absolute path", text)
		}
		text = filepath.Clean(text)
	}
	if len(complaints) > 0 {
		f.add(origin, "%q: %s", text, strings.Join(complaints, "; "))
	}
	return text
}

// podPrefixes parses the name of a source of pod prefixes, or a list of prefixes.
func (f *faults) podPrefixes(origin, text string) string {
	sources := []string{"auto", "node", "calico", "cilium", "ovn", "pods"}
	if !strings.ContainsAny(text, "./:") {
		return f.oneOf(origin, text, append(sources, "a list of prefixes"))
	}
	var prefixes Subnets
	if err := prefixes.Decode(text); err != nil {
		f.add(origin, "%w", err)
	}
	prefixes = f.fit(origin, prefixes, "pods")
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// fit returns those of the subnets that can be subnets of what, such as "pods".
func (f *faults) fit(origin string, subnets Subnets, what string) Subnets {
	return slices.DeleteFunc(subnets, func(p netip.Prefix) bool {
		reason := unfit(p)
		if reason != "" {
			f.add(origin, "%s can't be a subnet of %s: %s", p, what, reason)
		}
		return reason != ""
	})
}

// unfit returns why a prefix can't be a subnet of pods or nodes, or an empty string.
// Packets to a pod subnet are routed into the tunnel: it must not include addresses that
// the node itself needs.
func unfit(prefix netip.Prefix) string {
	first := prefix.Addr()
	switch {
	case prefix.Bits() == 0:
		return "it is the default route"
	case first.Is4In6():
		return "it is an IPv4 subnet written as IPv6"
	}
	for _, r := range reserved() {
		if prefix.Overlaps(r.prefix) {
			return "it overlaps " + r.name
		}
	}
	return ""
}

type reservedPrefix struct {
	prefix netip.Prefix
	name   string
}

// reserved are the prefixes that aren't routed between hosts (RFC 6890).
func reserved() []reservedPrefix {
	return []reservedPrefix{
		{netip.MustParsePrefix("0.0.0.0/8"), "the unspecified addresses"},
		{netip.MustParsePrefix("127.0.0.0/8"), "the loopback"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local addresses"},
		{netip.MustParsePrefix("224.0.0.0/3"), "multicast and reserved addresses"},
		{netip.MustParsePrefix("::/127"), "the unspecified address and the loopback"},
		{netip.MustParsePrefix("fe80::/10"), "link-local addresses"},
		{netip.MustParsePrefix("ff00::/8"), "multicast"},
	}
}
