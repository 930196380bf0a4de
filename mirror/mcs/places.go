package mcs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Place is the place of a cluster in the order of the exports of an import.
type Place struct {
	Cluster string
	// Ports are those of the import that the cluster serves; nil: all of them.
	Ports []Number
	// Gone is since when the cluster hasn't exported, in seconds; zero: it exports.
	Gone time.Time
}

// keepPlace is how long a place is kept for an export that is created again.
const keepPlace = 10 * time.Minute

// Number identifies a port for clients and between clusters, which may name it differently.
type Number struct {
	Port     int32
	Protocol corev1.Protocol
}

// String returns the number as in "80/TCP".
func (n Number) String() string { return fmt.Sprintf("%d/%s", n.Port, n.Protocol) }

func parseNumber(text string) (Number, bool) {
	port, protocol, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(port, 10, 16)
	known := slices.Contains([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, corev1.Protocol(protocol))
	return Number{int32(n), corev1.Protocol(protocol)}, err == nil && n > 0 && known //nolint:gosec // 16 bits.
}

// Words of the annotation of an import.
const (
	goneSince = "gone="
	noPort    = "-"
)

// FormatPlaces returns the annotation of an import, as in "aws,gcp 80/TCP,merit gone=1764000000".
func FormatPlaces(all []Place) string {
	text := make([]string, 0, len(all))
	for _, p := range all {
		words := []string{p.Cluster}
		switch {
		case !p.Gone.IsZero():
			words = append(words, goneSince+strconv.FormatInt(p.Gone.Unix(), 10))
		case p.Ports != nil && len(p.Ports) == 0:
			words = append(words, noPort)
		}
		for _, n := range p.Ports {
			words = append(words, n.String())
		}
		text = append(text, strings.Join(words, " "))
	}
	return strings.Join(text, ",")
}

// ParsePlaces reads the annotation of an import. Invalid entries are dropped. Earlier versions
// wrote a hash of the export behind the cluster, as in "aws/0123456789abcdef".
func ParsePlaces(annotation string) []Place {
	var all []Place
	for entry := range strings.SplitSeq(annotation, ",") {
		words := strings.Fields(entry)
		if len(words) == 0 {
			continue
		}
		p, valid := Place{}, true
		p.Cluster, _, _ = strings.Cut(words[0], "/")
		for _, word := range words[1:] {
			if since, gone := strings.CutPrefix(word, goneSince); gone {
				seconds, err := strconv.ParseInt(since, 10, 64)
				p.Gone, valid = time.Unix(seconds, 0), valid && err == nil
				continue
			}
			if p.Ports == nil {
				p.Ports = []Number{}
			}
			if word != noPort {
				n, ok := parseNumber(word)
				p.Ports, valid = append(p.Ports, n), valid && ok
			}
		}
		if valid && len(validation.IsDNS1123Label(p.Cluster)) == 0 && placeOf(all, p.Cluster) < 0 {
			all = append(all, p)
		}
	}
	return all
}

func placeOf(places []Place, cluster string) int {
	return slices.IndexFunc(places, func(p Place) bool { return p.Cluster == cluster })
}

// Exporting returns the clusters of places that export.
func Exporting(places []Place) []string {
	var all []string
	for _, p := range places {
		if p.Gone.IsZero() {
			all = append(all, p.Cluster)
		}
	}
	return all
}

// Leave returns places whose clusters have all gone.
func Leave(places []Place, now time.Time) []Place {
	all := slices.Clone(places)
	for n := range all {
		all[n].Ports, all[n].Gone = nil, cmp.Or(all[n].Gone, now.Truncate(time.Second))
	}
	return slices.DeleteFunc(all, func(p Place) bool { return p.over(now) })
}

// over reports whether a place is no longer kept.
func (p *Place) over(now time.Time) bool { return !p.Gone.IsZero() && now.Sub(p.Gone) >= keepPlace }

// rank sorts the offers by precedence, adds those that are only remembered, and returns the
// places of all, Ports not filled in:
//
//	| offer of a cluster                    | place                                    |
//	| ------------------------------------- | ---------------------------------------- |
//	| in the running import, known          | as in it                                 |
//	| in the running import, unknown        | as in it, with what it served            |
//	| in it until keepPlace ago, again here | as in it                                 |
//	| any other                             | after these, by creation time in seconds, then by name |
//
// Without a running import that is the order of KEP-1645. With one, a new export can't decide
// by stating an early time.
func (e *Exports) rank() (offers []Offer, places []Place) {
	left := slices.Clone(e.Offers)
	for _, p := range e.Places {
		at := slices.IndexFunc(left, func(o Offer) bool { return o.Cluster == p.Cluster })
		switch {
		case at >= 0:
			offers, places = append(offers, left[at]), append(places, Place{Cluster: p.Cluster})
			left = slices.Delete(left, at, at+1)
		case p.Gone.IsZero() && e.Running != nil && slices.Contains(e.Unknown, p.Cluster):
			offers, places = append(offers, e.Running.remembered(&p)), append(places, Place{Cluster: p.Cluster})
		default:
			places = append(places, Leave([]Place{p}, e.Now)...)
		}
	}
	slices.SortFunc(left, func(a, b Offer) int {
		return cmp.Or(cmp.Compare(a.Created.Unix(), b.Created.Unix()), cmp.Compare(a.Cluster, b.Cluster))
	})
	for _, o := range left {
		offers, places = append(offers, o), append(places, Place{Cluster: o.Cluster})
	}
	return offers, places
}

// Names returns the names in the next import of the ports that a cluster serves in this one, by
// their names here.
func (i *Import) Names(next *Import, cluster string) map[string]string {
	names := map[string]string{}
	if at := placeOf(i.Places, cluster); at >= 0 {
		for _, p := range i.remembered(&i.Places[at]).Ports {
			if name, served := next.nameOf(p.Number()); served {
				names[p.Name] = name
			}
		}
	}
	return names
}

// remembered returns what a cluster exported when the import was computed.
func (i *Import) remembered(p *Place) Offer {
	o := Offer{
		Cluster: p.Cluster, Export: &Export{Labels: i.Labels, Annotations: i.Annotations}, Spec: Spec{Traits: i.Traits},
		LocalFirst: i.LocalFirst, InternalTrafficPolicy: i.InternalTrafficPolicy, TrafficDistribution: i.TrafficDistribution, remembered: true,
	}
	for _, port := range i.Ports {
		if p.Ports == nil || slices.Contains(p.Ports, port.Number()) {
			o.Ports = append(o.Ports, port)
		}
	}
	return o
}
