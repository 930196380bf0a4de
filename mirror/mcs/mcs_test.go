package mcs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func offer(cluster string, created int64, ports ...Port) Offer {
	return Offer{Cluster: cluster, Export: &Export{Created: time.Unix(created, 0)}, Spec: Spec{Traits{IPv4: true}, ports}}
}

func tcp(name string, port int32) Port {
	return Port{Name: name, Protocol: corev1.ProtocolTCP, Port: port}
}

func names(ports []Port) string {
	text := make([]string, 0, len(ports))
	for _, p := range ports {
		text = append(text, p.String())
	}
	return strings.Join(text, ", ")
}

func TestDerivedNames(t *testing.T) {
	a, b := DerivedName("a", "b-c"), DerivedName("a-b", "c")
	if a == b || !IsDerivedName(a) || a != DerivedName("a", "b-c") {
		t.Errorf("%s, %s", a, b)
	}
	for _, name := range []string{"derived-", "derived-0123456789a", "derived-012345678z", "derived-of-a-thing", "web"} {
		if IsDerivedName(name) {
			t.Errorf("%s counts as derived", name)
		}
	}
}

func TestMerge(t *testing.T) {
	udp := Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 42}
	sctp := Port{Name: "stcp", Protocol: corev1.ProtocolSCTP, Port: 142}
	yes, no := true, false
	with := func(o Offer, change func(o *Offer)) Offer {
		change(&o)
		return o
	}
	for _, c := range []struct {
		name    string
		offers  []Offer
		running *bool
		ports   string
		kind    v1beta1.ServiceImportType
		reasons string
	}{
		{"one", []Offer{offer("a", 1, tcp("tcp", 42), udp)}, nil, "tcp 42/TCP, udp 42/UDP", "ClusterSetIP", ""},
		{"equal", []Offer{offer("a", 1, tcp("tcp", 42), udp), offer("b", 2, udp, tcp("tcp", 42))}, nil, "tcp 42/TCP, udp 42/UDP", "ClusterSetIP", ""},
		{"united", []Offer{offer("a", 1, tcp("tcp", 42), udp), offer("b", 2, tcp("tcp", 42), sctp)}, nil, "tcp 42/TCP, udp 42/UDP, stcp 142/SCTP", "ClusterSetIP", "PortConflict"},
		{"one name", []Offer{offer("a", 1, tcp("tcp", 42), udp), offer("b", 2, tcp("tcp", 43))}, nil, "tcp 42/TCP, udp 42/UDP", "ClusterSetIP", "PortConflict"},
		{"one number", []Offer{offer("a", 1, tcp("tcp", 42)), offer("b", 2, tcp("web", 42))}, nil, "tcp 42/TCP", "ClusterSetIP", "PortConflict"},
		{"without a name", []Offer{offer("a", 1, tcp("", 42)), offer("b", 2, tcp("web", 43))}, nil, "42/TCP", "ClusterSetIP", "PortConflict"},
		{"headless, the second", []Offer{offer("a", 1), with(offer("b", 2), func(o *Offer) { o.Headless = true })}, nil, "", "ClusterSetIP", "TypeConflict"},
		{"headless, the first", []Offer{with(offer("a", 1), func(o *Offer) { o.Headless = true }), offer("b", 2)}, nil, "", "Headless", "TypeConflict"},
		{"headless, but not what runs", []Offer{with(offer("a", 1), func(o *Offer) { o.Headless = true }), offer("b", 2)}, &no, "", "ClusterSetIP", "TypeConflict"},
		{"no offer agrees with what runs", []Offer{offer("a", 1), offer("b", 2)}, &yes, "", "ClusterSetIP", ""},
		{
			"all else", []Offer{offer("a", 1), with(offer("b", 2), func(o *Offer) {
				o.AffinityTimeout, o.InternalTrafficPolicy, o.TrafficDistribution, o.IPv6 = 10, "Local", "PreferClose", true
				o.Labels, o.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
			})}, nil, "", "ClusterSetIP", "SessionAffinityConflict,AnnotationsConflict,LabelsConflict,InternalTrafficPolicyConflict,TrafficDistributionConflict,IPFamilyConflict",
		},
		{
			"affinity", []Offer{with(offer("a", 1), func(o *Offer) { o.AffinityTimeout = 10 }), with(offer("b", 2), func(o *Offer) { o.AffinityTimeout = 20 })},
			nil, "", "ClusterSetIP", "SessionAffinityConfigConflict",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := Exports{Local: "other", Offers: c.offers, Now: time.Unix(1.8e9, 0)}
			if c.running != nil {
				e.Running = &Import{Spec: Spec{Traits: Traits{Headless: *c.running}}}
			}
			i, conflict := e.Merge()
			var reasons []string
			for _, r := range conflict.Reasons {
				reasons = append(reasons, string(r))
			}
			if got := strings.Join(reasons, ","); names(i.Ports) != c.ports || typeOf(i.Headless) != c.kind || got != c.reasons {
				t.Errorf("ports %s, type %s, conflicts %s", names(i.Ports), typeOf(i.Headless), got)
			}
			o := i.Object("shop", "web", nil, nil)
			derived := map[v1beta1.ServiceImportType]string{v1beta1.ClusterSetIP: DerivedName("shop", "web")}[c.kind]
			if o.Spec.Type != c.kind || o.Spec.Ports == nil || o.Annotations["multicluster.kubernetes.io/derived-service"] != derived {
				t.Errorf("object %+v %+v", o.Annotations, o.Spec)
			}
		})
	}
}

// A headless import has no addresses of its own, but families: those of its exports that the
// cluster has, in the cluster's order.
func TestFamilies(t *testing.T) {
	both := []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	for _, c := range []struct {
		i       Import
		cluster []corev1.IPFamily
		want    string
	}{
		{Import{Spec: Spec{Traits: Traits{IPv4: true, IPv6: true}}}, both, "[IPv6 IPv4]"},
		{Import{Spec: Spec{Traits: Traits{IPv4: true}}}, both, "[IPv4]"},
		{Import{Spec: Spec{Traits: Traits{IPv4: true, IPv6: true}}}, both[1:], "[IPv4]"},
		{Import{Spec: Spec{Traits: Traits{IPv6: true}}}, both[1:], "[]"},
		{Import{Spec: Spec{Traits: Traits{IPv4: true}}}, nil, "[]"},
	} {
		if got := fmt.Sprint(c.i.Families(c.cluster)); got != c.want {
			t.Errorf("%+v in a cluster of %v: %s, want %s", c.i, c.cluster, got, c.want)
		}
	}
}

func TestTraffic(t *testing.T) {
	for _, c := range []struct {
		i      Import
		policy corev1.ServiceInternalTrafficPolicy
		near   string
	}{
		{Import{}, "Cluster", ""},
		{Import{InternalTrafficPolicy: "Cluster", TrafficDistribution: "PreferClose"}, "Cluster", "PreferClose"},
		{Import{InternalTrafficPolicy: "Local"}, "Local", ""},
		{Import{InternalTrafficPolicy: "Local", Spec: Spec{Traits: Traits{Headless: true}}}, "Cluster", ""},
	} {
		var s corev1.ServiceSpec
		if c.i.Traffic(&s); *s.InternalTrafficPolicy != c.policy || (s.TrafficDistribution == nil) != (c.near == "") || c.near != "" && *s.TrafficDistribution != c.near {
			t.Errorf("%+v: %+v", c.i, s)
		}
	}
}

// The order in which exports are seen doesn't matter, and one that is seen later decides
// nothing about a running import of another cluster.
func TestOrderOfRandomExports(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var offers []Offer
		for n := range 1 + random.IntN(5) {
			o := offer(fmt.Sprintf("c%d", n), random.Int64N(4))
			names := random.Perm(4)
			for p := range random.IntN(4) {
				o.Ports = append(o.Ports, tcp(fmt.Sprint("p", names[p]), int32(80+p)))
			}
			o.Headless = random.IntN(3) == 0
			offers = append(offers, o)
		}
		merged := func(local string, of []Offer, running *Import) Import {
			e := Exports{Local: local, Offers: slices.Clone(of), Running: running, Now: time.Unix(1.8e9, 0)}
			random.Shuffle(len(of), func(i, j int) { e.Offers[i], e.Offers[j] = e.Offers[j], e.Offers[i] })
			if running != nil {
				e.Places = running.Places
			}
			i, _ := e.Merge()
			return i
		}
		first := merged("c9", offers, nil)
		if again := merged("c9", offers, nil); !reflect.DeepEqual(first, again) {
			t.Fatalf("%+v\n%+v", first, again)
		}
		late := offer("late", -1e9, tcp("p0", 666), tcp("p1", 667))
		with := merged("c9", append(offers, late), &first)
		if with.Headless != first.Headless || !slices.Equal(with.Ports[:len(first.Ports)], first.Ports) {
			t.Fatalf("seized: %+v\n%+v", first, with)
		}
		// A cluster serves all of its own ports, by their names, whatever others have.
		own := merged("c0", append(offers, late), &first)
		for _, p := range offers[0].Ports {
			at := slices.IndexFunc(own.Ports, func(q Port) bool { return q.Number() == p.Number() })
			if at < 0 {
				t.Fatalf("%v isn't served by its own cluster: %+v", p, own)
			}
			if name, served := own.Name(&offers[0], p.Name); !served || name != own.Ports[at].Name {
				t.Fatalf("%v is served as %q, %v: %+v", p, name, served, own)
			}
		}
	}
}

// Clusters state when they exported something. That orders a new import, and nothing else.
func TestStatedTimes(t *testing.T) {
	stated := map[string]time.Time{
		"epoch": time.Unix(0, 0), "none": {}, "future": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"now": time.Unix(1.8e9, 0), "now-later": time.Unix(1.8e9, 9e8), "before": time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	var offers []Offer
	for cluster, created := range stated {
		o := offer(cluster, 0, tcp("http", 80))
		o.Created = created
		offers = append(offers, o)
	}
	order := func(running ...Place) string {
		i, _ := (&Exports{Offers: offers, Places: running, Now: time.Unix(1.8e9, 0)}).Merge()
		return strings.Join(Exporting(i.Places), " ")
	}
	if got := order(); got != "before none epoch now now-later future" {
		t.Errorf("new: %q", got)
	}
	if got := order(Place{Cluster: "now"}, Place{Cluster: "future"}); got != "now future before none epoch now-later" {
		t.Errorf("running: %q", got)
	}
}

func TestPlacesAreReadBack(t *testing.T) {
	all := []Place{
		{Cluster: "aws"}, {Cluster: "gcp", Ports: []Number{{80, "TCP"}, {53, "UDP"}}},
		{Cluster: "merit", Ports: []Number{}}, {Cluster: "old", Gone: time.Unix(1.8e9, 0)},
	}
	text := "aws,gcp 80/TCP 53/UDP,merit -,old gone=1800000000"
	if got := FormatPlaces(all); got != text {
		t.Errorf("%q", got)
	}
	if got := ParsePlaces(text); !reflect.DeepEqual(got, all) {
		t.Errorf("%+v", got)
	}
	if got := ParsePlaces("aws/0123456789abcdef,gcp/0123456789abcdef"); !reflect.DeepEqual(got, []Place{{Cluster: "aws"}, {Cluster: "gcp"}}) {
		t.Errorf("of an earlier version: %+v", got)
	}
	if got := ParsePlaces("aws,aws 80/TCP"); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	for _, text := range []string{"", "AWS", "a b", "a 80", "a 80/ICMP", "a 0/TCP", "a 70000/TCP", "a gone=x", "-", strings.Repeat(",", 1000)} {
		if got := ParsePlaces(text); len(got) > 0 {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestTrimExport(t *testing.T) {
	many := map[string]string{}
	for n := range 1000 {
		many[fmt.Sprintf("example.com/k%03d", n)] = strings.Repeat("x", 100)
	}
	x, _ := TrimExport(&v1beta1.ServiceExport{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(strings.Repeat("u", 1<<20))},
		Spec: v1beta1.ServiceExportSpec{
			ExportedLabels: map[string]string{
				"a": "b", "not a key": "c", "d": "not a value", "mirror.semaphore.uw.io/imported": "true", "argocd.argoproj.io/instance": "x",
			},
			ExportedAnnotations: many,
		},
		Status: v1beta1.ServiceExportStatus{Conditions: []metav1.Condition{{Type: ConditionCluster, Message: "Not A Label"}}},
	}, false)
	if !maps.Equal(x.Labels, map[string]string{"a": "b"}) || len(x.Annotations) != maxExportedKeys || len(x.NotCopied) != maxNamed || x.Cluster != "" {
		t.Errorf("%v, %d annotations, not copied %v, cluster %q", x.Labels, len(x.Annotations), x.NotCopied, x.Cluster)
	}
	deleted := metav1.Now()
	if _, counts := TrimExport(&v1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted, Finalizers: []string{"example.com/hold"}}}, false); counts {
		t.Error("a deleted export counts")
	}
}

// Labels and annotations by which tools find and delete their objects stay with the export.
func TestWhatToolsPruneByIsNotCopied(t *testing.T) {
	kept, left := map[string]string{}, map[string]string{}
	for _, key := range []string{"team", "example.com/team", "notkubernetes.io/team", "k8s.io.example.com/team", "networking.istio.io/exportTo"} {
		kept[key] = "x"
	}
	for _, key := range []string{
		"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "applyset.kubernetes.io/part-of", "kubernetes.io/team",
		"kubectl.kubernetes.io/last-applied-configuration", "config.k8s.io/owning-inventory", "k8s.io/team", "multicluster.x-k8s.io/team",
		"multicluster.kubernetes.io/derived-service", "mirror.semaphore.uw.io/imported", "kapp.k14s.io/app", "kapp.k14s.io/association",
		"objectset.rio.cattle.io/hash", "objectset.rio.cattle.io/id", "argocd.argoproj.io/instance", "argocd.argoproj.io/tracking-id",
		"kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name", "helm.sh/chart", "meta.helm.sh/release-name", "configmanagement.gke.io/managed",
	} {
		left[key] = "x"
	}
	all := maps.Clone(kept)
	maps.Copy(all, left)
	x, _ := TrimExport(&v1beta1.ServiceExport{Spec: v1beta1.ServiceExportSpec{ExportedLabels: all, ExportedAnnotations: all}}, false)
	if !maps.Equal(x.Labels, kept) || !maps.Equal(x.Annotations, kept) {
		t.Errorf("labels %v, annotations %v", x.Labels, x.Annotations)
	}
}

func TestConditionsChangeOnlyWithTheirContent(t *testing.T) {
	conflict := Conflict{Reasons: []v1beta1.ServiceExportConditionReason{"PortConflict", "TypeConflict"}, Differences: []Difference{{"aws", strings.Repeat("x", 1e5)}}}
	want := ExportConditions("gcp", &Export{}, Fault{}, &conflict, "")
	all, changed := SetConditions([]metav1.Condition{{Type: "Other", Status: "True"}}, want, 1)
	if !changed || len(all) != 5 || all[3].Reason != "PortConflict,TypeConflict" || len(all[3].Message) > maxMessage {
		t.Errorf("%v", all)
	}
	if again, changed := SetConditions(all, want, 1); changed {
		t.Errorf("changed again: %v", again)
	}
	if again, changed := SetConditions(all, ExportConditions("gcp", &Export{}, NoService(), &Conflict{}, ""), 2); !changed || again[1].Status != "False" || again[3].Status != "False" {
		t.Errorf("%v", again)
	}
}
