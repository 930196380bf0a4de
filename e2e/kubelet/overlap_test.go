package kubelet_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestOverlap joins clusters whose pods have the same addresses, and moves one of them to other
// virtual subnets. Then the clusters leave.
func TestOverlap(t *testing.T) {
	subnets := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	const pods4, pods6 = "10.4.0.0/16", "fd00:10:4::/48"
	l := startLabWith(t, []source{{version: versions[0]}},
		testbed.ClusterConfig{Name: "aws", PodSubnets: subnets(pods4, pods6), VirtualSubnets: subnets("100.77.0.0/16", "fd00:77::/48")},
		testbed.ClusterConfig{Name: "gcp", PodSubnets: subnets(pods4, pods6), VirtualSubnets: subnets("100.78.0.0/16", "fd00:78::/48")})
	l.startDNS(t)
	l.serveCalico(t)
	for i := range l.clusters {
		l.serveMeter(t, i)
	}
	before := l.everything(t)
	join := func(args ...string) []string {
		return append([]string{"join", "--yes", "--image", ourImage(), "aws", "gcp"}, args...)
	}
	mapped := func(cluster, four, six string) string {
		return cluster + "=" + pods4 + "=" + four + " " + pods6 + "=" + six
	}

	// A node has a link of Tailscale at first, which drops what comes from 100.64.0.0/10 by others.
	const vpn = "tailscale0"
	for _, command := range []string{"tuntap add dev " + vpn + " mode tun", "address add 100.101.102.103/32 dev " + vpn, "link set " + vpn + " up"} {
		if _, err := l.nodes[1].Run(t.Context(), "ip", strings.Fields(command)...); err != nil {
			t.Fatal(err)
		}
	}
	for _, of := range []struct{ from, says string }{{"10.", "gcp has the link " + vpn + " of node"}, {"100.", "choose the virtual subnets"}} {
		out, err := l.run(t, join("--pod-subnets", "aws="+pods4+" "+pods6, "--pod-subnets", "gcp="+pods4+" "+pods6)...)
		if err == nil || !strings.Contains(out, "choose the virtual subnets above, or others, with --virtual-subnets 'aws="+pods4+"="+of.from) || !strings.Contains(out, of.says) {
			t.Errorf("%v: without a choice it says:\n%s", err, out)
		}
		if of.from == "10." {
			if err := l.nodes[1].DeleteLink(vpn); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.same(t, before)
	began := time.Now()
	l.ctl(t, join("--virtual-subnets", mapped("aws", "100.77.0.0/16", "fd00:77::/48"), "--virtual-subnets", mapped("gcp", "100.78.0.0/16", "fd00:78::/48"))...)
	t.Logf("FIGURE semaphorectl join with virtual subnets took %v", time.Since(began).Round(10*time.Millisecond))
	l.answerByName(t, 0, 1)
	versions := l.resourceVersions(t)
	l.ctl(t, join()...)
	if diff := cmp.Diff(versions, l.resourceVersions(t)); diff != "" {
		t.Errorf("joined again it changed (-before +after):\n%s", diff)
	}
	well := func(t *testing.T, aws string) {
		t.Helper()
		defer l.enforce(t)()
		out := l.ctl(t, "verify", "--skip", "throughput", "aws", "gcp")
		for what, times := range map[string]int{"✓ its virtual": 4, "with the label: admitted": 4} {
			if n := strings.Count(out, what); n != times {
				t.Errorf("%q is there %d times, want %d", what, n, times)
			}
		}
		if out := l.ctl(t, "status", "aws", "gcp"); !strings.Contains(out, "aws: other clusters know its pods "+pods4+" as "+aws) {
			t.Errorf("status says\n%s", out)
		}
		l.ctl(t, "doctor", "aws", "gcp")
		pool, err := l.clusters[1].Dynamic().Resource(calicoOf(1).WithResource("ippools")).Get(t.Context(), "remote-aws", metav1.GetOptions{})
		must(t, err)
		if cidr, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr"); cidr != aws {
			t.Errorf("the pool for pods of aws has %s", cidr)
		}
	}
	t.Run("verify, status and doctor", func(t *testing.T) { well(t, "100.77.0.0/16") })
	t.Run("others", func(t *testing.T) {
		l.ctl(t, join("--virtual-subnets", mapped("aws", "100.79.0.0/16", "fd00:79::/48"))...)
		l.clusters[0].VirtualSubnets = subnets("100.79.0.0/16", "fd00:79::/48")
		l.answerByName(t, 0, 1)
		well(t, "100.79.0.0/16")
	})
	t.Run("nothing is left", func(t *testing.T) {
		if out := l.ctl(t, "leave", "aws", "gcp"); strings.Count(out, "no cluster knows its pods by virtual subnets any more") != 2 {
			t.Errorf("it says\n%s", out)
		}
		l.same(t, before)
	})
}
