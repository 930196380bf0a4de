package controllers_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/mirror"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// mapBed is a bed in which both controllers of gcp have the remote aws, whose pods are in
// 10.4.0.0/16.
type mapBed struct {
	*mirrorBed
	policies *policyBed
	sets     policy.SetClient
}

const toVirtual, toOther = "10.4.0.0/16=10.200.0.0/16", "10.4.0.0/16=10.201.0.0/16"

// TestVirtualSubnets runs both controllers with a map of a remote's pod subnets, whatever maps the
// remote's nodes publish.
func TestVirtualSubnets(t *testing.T) {
	remote := []string{"deploy/remote/service-mirror.yaml", "deploy/remote/policy.yaml"}
	b := newBed(t, map[string][]string{
		"gcp": {"deploy/service-mirror/rbac.yaml", "deploy/service-mirror/admission.yaml", "deploy/policy/rbac.yaml", "deploy/policy/admission.yaml", "policy/testdata/v3.yaml"},
		"aws": remote, "merit": remote,
	})
	m := &mapBed{mirrorBed: &mirrorBed{b}, policies: &policyBed{b}}
	m.sets = m.policies.sets(t, m.gcp)
	createNamespace(t, m.aws, "shop")
	sl := slice(svc("web"), "web-1", "10.4.0.1", "10.4.0.2")
	node := "n-1"
	sl.Endpoints[0].NodeName = &node // The other one has none.
	must(t, putService(t.Context(), m.aws, "shop", svc("web"), sl))
	for i := range 2 {
		putPods(t, m.aws, running("shop", fmt.Sprint("p-", i+1), "web", fmt.Sprint("10.4.0.", i+1)))
	}
	m.publish(t, node, toVirtual)
	mirrors, sets := m.controllers(t, toVirtual, "10.200.0.0/16")
	m.want(t, "10.200.0.1", "10.200.0.2")
	still, networks := mirrors.still(t), recordSets(t, m.sets)
	m.publish(t, node, toOther)
	m.publish(t, "n-2", toOther)
	m.publish(t, "n-3", "no map")
	if n := mirrors.still(t); n != still {
		t.Errorf("%d writes for what nodes publish", n-still)
	}
	m.want(t, "10.200.0.1", "10.200.0.2")
	mirrors.stop()
	sets.stop()
	if networks.end(t); len(networks.all()) > 0 {
		t.Errorf("what nodes publish changed network sets: %v", networks.all())
	}

	t.Run("a restart writes nothing", func(t *testing.T) {
		slices, networks := m.record(t), recordSets(t, m.sets)
		mirrors, sets := m.controllers(t, toVirtual, "10.200.0.0/16")
		m.want(t, "10.200.0.1", "10.200.0.2")
		mirrors.still(t)
		mirrors.stop()
		sets.stop()
		slices.end(t)
		networks.end(t)
		if all := append(slices.all(), networks.all()...); len(all) > 0 {
			t.Errorf("it wrote %v", all)
		}
	})
	for _, c := range []struct{ name, subnetMap, subnet, first, second string }{
		{"other subnets", toOther, "10.201.0.0/16", "10.201.0.1", "10.201.0.2"},
		{"no map", "", "10.4.0.0/16", "10.4.0.1", "10.4.0.2"},
		{"a map comes", toVirtual, "10.200.0.0/16", "10.200.0.1", "10.200.0.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			written := m.record(t)
			mirrors, sets := m.controllers(t, c.subnetMap, c.subnet)
			m.want(t, c.first, c.second)
			mirrors.stop()
			sets.stop()
			m.neverLess(t, written)
		})
	}
}

// publish creates or changes a node of aws, with a map as agents of earlier versions published it.
func (m *mapBed) publish(t *testing.T, name, text string) {
	t.Helper()
	nodes := m.aws.Client().CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"wireguard.semaphore.uw.io/podCIDRs":"10.4.0.0/24","wireguard.semaphore.uw.io/podSubnetsMap":%q}}}`, text)
	_, err = nodes.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// controllers runs both until the test ends or stop is called, with this map and pod subnet of aws.
func (m *mapBed) controllers(t *testing.T, text, subnet string) (*mirrorInstance, *policyInstance) {
	t.Helper()
	var pods config.SubnetMap
	if text != "" {
		must(t, pods.Decode(text))
	}
	subnets := []netip.Prefix{netip.MustParsePrefix(subnet)}
	mirrors := m.start(t, func(cfg *mirror.Config) {
		cfg.Remotes = slices.DeleteFunc(cfg.Remotes, func(r mirror.Remote) bool { return r.Name != "aws" })
		cfg.Remotes[0].PodSubnets, cfg.Remotes[0].PodSubnetsMap = subnets, pods
	})
	return mirrors, m.policies.start(t, m.gcp, func(cfg *policy.Config) { cfg.Remotes[0].Rules.Subnets, cfg.Remotes[0].Rules.Map = subnets, pods }, m.aws)
}

// want waits until both have these addresses.
func (m *mapBed) want(t *testing.T, addresses ...string) {
	t.Helper()
	m.leadsTo(t, webName, addresses...)
	expect(t, m.sets, contents{"aws-shop-web": set("aws", "shop", "web", addresses...)})
}

// neverLess ends a recorder, and fails the test for each version of the slices with less than two
// addresses.
func (m *mapBed) neverLess(t *testing.T, r *recorder) {
	t.Helper()
	versions := 0
	r.end(t)
	r.replay(func(v version, s state) {
		versions++
		number := 0
		for _, o := range s {
			if sl, is := o.(*discoveryv1.EndpointSlice); is {
				number += len(addressesOf(sl))
			}
		}
		if number < 2 {
			t.Errorf("%s %s: %d endpoints", v.event, v.key, number)
		}
	})
	if versions == 0 {
		t.Error("nothing was recorded")
	}
}
