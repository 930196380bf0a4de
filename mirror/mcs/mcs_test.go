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
	return Offer{Cluster: cluster, Export: &Export{Created: time.Unix(created, 0), Mark: mark(cluster)}, Ports: ports, IPv4: true}
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
			i, conflict := Merge(c.offers, c.running)
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
		{Import{IPv4: true, IPv6: true}, both, "[IPv6 IPv4]"},
		{Import{IPv4: true}, both, "[IPv4]"},
		{Import{IPv4: true, IPv6: true}, both[1:], "[IPv4]"},
		{Import{IPv6: true}, both[1:], "[]"},
		{Import{IPv4: true}, nil, "[]"},
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
		{Import{InternalTrafficPolicy: "Local", Headless: true}, "Cluster", ""},
	} {
		var s corev1.ServiceSpec
		if c.i.Traffic(&s); *s.InternalTrafficPolicy != c.policy || (s.TrafficDistribution == nil) != (c.near == "") || c.near != "" && *s.TrafficDistribution != c.near {
			t.Errorf("%+v: %+v", c.i, s)
		}
	}
}

// The order in which exports are seen doesn't matter, and one that is seen later decides
// nothing about a running import.
func TestRank(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var offers []Offer
		for n := range 1 + random.IntN(5) {
			o := offer(fmt.Sprintf("c%d", n), random.Int64N(4))
			for p := range random.IntN(4) {
				o.Ports = append(o.Ports, tcp(fmt.Sprint("p", random.IntN(4)), int32(80+p)))
			}
			o.Headless = random.IntN(3) == 0
			offers = append(offers, o)
		}
		merged := func(of []Offer, running []Incumbent) Import {
			of = slices.Clone(of)
			random.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
			Rank(of, running)
			i, _ := Merge(of, nil)
			return i
		}
		first := merged(offers, nil)
		if again := merged(offers, nil); !reflect.DeepEqual(first, again) {
			t.Fatalf("%+v\n%+v", first, again)
		}
		late := offer("late", -1e9, tcp("p0", 666), tcp("p1", 667))
		with := merged(append(offers, late), first.Exports)
		if with.Headless != first.Headless || !slices.Equal(with.Ports[:len(first.Ports)], first.Ports) {
			t.Fatalf("seized: %+v\n%+v", first, with)
		}
		again := slices.Clone(offers)
		again[0].Export = &Export{Created: time.Unix(-1e9, 0), Mark: mark("created again")}
		if of := merged(again, first.Exports); len(offers) > 1 && of.Exports[len(offers)-1].Cluster != "c0" {
			t.Fatalf("an export that was created again is not last: %+v", of.Exports)
		}
	}
}

// Clusters state when they exported something. That orders a new import, and nothing else.
func TestStatedTimes(t *testing.T) {
	stated := map[string]time.Time{
		"epoch": time.Unix(0, 0), "none": {}, "future": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		"now": time.Unix(1.8e9, 0), "now, later": time.Unix(1.8e9, 9e8), "before": time.Date(-9999, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	var offers []Offer
	for cluster, created := range stated {
		o := offer(cluster, 0, tcp("http", 80))
		o.Created = created
		offers = append(offers, o)
	}
	order := func(running ...Incumbent) (all []string) {
		Rank(offers, running)
		for _, o := range offers {
			all = append(all, o.Cluster)
		}
		return all
	}
	if got := order(); !slices.Equal(got, []string{"before", "none", "epoch", "now", "now, later", "future"}) {
		t.Errorf("new: %q", got)
	}
	if got := order(Incumbent{"now", mark("now")}, Incumbent{"future", mark("future")}); !slices.Equal(got, []string{"now", "future", "before", "none", "epoch", "now, later"}) {
		t.Errorf("running: %q", got)
	}
}

func TestIncumbentsAreReadBack(t *testing.T) {
	all := []Incumbent{{"aws", mark("1")}, {"gcp", mark("2")}}
	if got := ParseIncumbents(FormatIncumbents(all)); !slices.Equal(got, all) {
		t.Errorf("%v", got)
	}
	for _, text := range []string{"", "aws", "aws/", "AWS/" + mark("1"), "a/b/c", strings.Repeat(",", 1000)} {
		if got := ParseIncumbents(text); len(got) > 0 {
			t.Errorf("%q: %v", text, got)
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
	if !maps.Equal(x.Labels, map[string]string{"a": "b"}) || len(x.Annotations) != maxExportedKeys || len(x.NotCopied) != maxNamed || len(x.Mark) != markLength || x.Cluster != "" {
		t.Errorf("%v, %d annotations, not copied %v, mark %s", x.Labels, len(x.Annotations), x.NotCopied, x.Mark)
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
