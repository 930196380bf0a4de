package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

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

// The functions below parse text. They add errors to f, and return the zero value then.

func (f *faults) duration(origin, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		f.add(origin, "%q is not a duration such as 30s, 10m or 1h, or 0", text)
		return 0
	}
	return d
}

func (f *faults) boolean(origin, text string) bool {
	b, err := strconv.ParseBool(text)
	if err != nil {
		f.add(origin, "%q is neither true nor false", text)
	}
	return b
}

func (f *faults) integer(origin, text string, limits []string) int {
	n, err := strconv.Atoi(text)
	if err != nil || !within(int64(n), limits) {
		f.add(origin, "%q is not a number from %s to %s", text, limits[0], limits[1])
		return 0
	}
	return n
}

// kubeMarks are the bits by which kube-proxy and kubelets mark packets to masquerade and to
// drop (iptablesMasqueradeBit and iptablesDropBit, 14 and 15).
const kubeMarks = 0xc000

// mark parses a firewall mark.
func (f *faults) mark(origin, text string) uint32 {
	n, err := strconv.ParseUint(text, 0, 32)
	switch {
	case err != nil:
		f.add(origin, "%q is not a firewall mark such as 0x1073, or 0", text)
	case n&kubeMarks != 0:
		f.add(origin, "%#x has a bit by which kube-proxy masquerades or drops packets (0x4000, 0x8000)", n)
	default:
		return uint32(n)
	}
	return 0
}

// bytes parses a number with one of the suffixes of Kubernetes' quantities.
func (f *faults) bytes(origin, text string, limits []string) int64 {
	q, err := resource.ParseQuantity(text)
	if err != nil || !within(q.Value(), limits) {
		f.add(origin, "%q is not a number of bytes such as 64Mi, from %s to %s", text, limits[0], limits[1])
		return 0
	}
	return q.Value()
}

// within reports whether n is between the two limits, inclusive.
func within(n int64, limits []string) bool {
	least, most := resource.MustParse(limits[0]), resource.MustParse(limits[1])
	return least.Value() <= n && n <= most.Value()
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

// clusters parses a comma-separated list of names of clusters.
func (f *faults) clusters(origin, text string) []string {
	var all []string
	for item := range strings.SplitSeq(text, ",") {
		name, err := cluster.ParseName(strings.TrimSpace(item))
		if err != nil {
			f.add(origin, "%w", err)
			continue
		}
		all = append(all, string(name))
	}
	return all
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
	prefixes := f.subnets(origin, text, "pods")
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

// subnets parses a comma-separated list of prefixes, and returns them masked and sorted.
// Errors name what the subnets are for, such as "pods".
func (f *faults) subnets(origin, text, what string) []netip.Prefix {
	var all []netip.Prefix
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			f.add(origin, "%q is not a subnet such as 10.4.0.0/16 or fd00:4::/48", item)
			continue
		}
		prefix = prefix.Masked()
		if reason := unfit(prefix); reason != "" {
			f.add(origin, "%s can't be a subnet of %s: %s", prefix, what, reason)
			continue
		}
		all = append(all, prefix)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return all
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
