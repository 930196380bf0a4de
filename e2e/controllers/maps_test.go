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
)

// mapBed is a bed in which the mirror of gcp has the remote aws, whose pods are in 10.4.0.0/16.
type mapBed struct{ *mirrorBed }

const toVirtual, toOther = "10.4.0.0/16=10.200.0.0/16", "10.4.0.0/16=10.201.0.0/16"

// TestVirtualSubnets runs the mirror with a map of a remote's pod subnets, whatever maps the
// remote's nodes publish.
func TestVirtualSubnets(t *testing.T) {
	remote := []string{"deploy/remote/service-mirror.yaml"}
	b := newBed(t, map[string][]string{
		"gcp": {"deploy/service-mirror/rbac.yaml", "deploy/service-mirror/admission.yaml"},
		"aws": remote, "merit": remote,
	})
	m := &mapBed{&mirrorBed{b}}
	createNamespace(t, m.aws, "shop")
	sl := slice(svc("web"), "web-1", "10.4.0.1", "10.4.0.2")
	node := "n-1"
	sl.Endpoints[0].NodeName = &node // The other one has none.
	must(t, putService(t.Context(), m.aws, "shop", svc("web"), sl))
	m.publish(t, node, toVirtual)
	mirrors := m.mirror(t, toVirtual, "10.200.0.0/16")
	m.leadsTo(t, webName, "10.200.0.1", "10.200.0.2")
	still := mirrors.still(t)
	m.publish(t, node, toOther)
	m.publish(t, "n-2", toOther)
	m.publish(t, "n-3", "no map")
	if n := mirrors.still(t); n != still {
		t.Errorf("%d writes for what nodes publish", n-still)
	}
	m.leadsTo(t, webName, "10.200.0.1", "10.200.0.2")
	mirrors.stop()

	t.Run("a restart writes nothing", func(t *testing.T) {
		written := m.record(t)
		mirrors := m.mirror(t, toVirtual, "10.200.0.0/16")
		m.leadsTo(t, webName, "10.200.0.1", "10.200.0.2")
		mirrors.still(t)
		mirrors.stop()
		written.end(t)
		if all := written.all(); len(all) > 0 {
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
			mirrors := m.mirror(t, c.subnetMap, c.subnet)
			m.leadsTo(t, webName, c.first, c.second)
			mirrors.stop()
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

// mirror runs the mirror until the test ends or stop is called, with this map and pod subnet of
// aws.
func (m *mapBed) mirror(t *testing.T, text, subnet string) *mirrorInstance {
	t.Helper()
	var pods config.SubnetMap
	if text != "" {
		must(t, pods.Decode(text))
	}
	return m.start(t, func(cfg *mirror.Config) {
		cfg.Remotes = slices.DeleteFunc(cfg.Remotes, func(r mirror.Remote) bool { return r.Name != "aws" })
		cfg.Remotes[0].PodSubnets, cfg.Remotes[0].PodSubnetsMap = []netip.Prefix{netip.MustParsePrefix(subnet)}, pods
	})
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
