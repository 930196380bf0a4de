package controllers_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/mirror"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// mapBed is a bed in which both controllers of gcp have the remote aws, whose nodes have maps of
// its pod subnet 10.4.0.0/16.
type mapBed struct {
	*mirrorBed
	policies *policyBed
	sets     policy.SetClient
}

const toVirtual, toOther = "10.4.0.0/16=10.200.0.0/16", "10.4.0.0/16=10.201.0.0/16"

// TestMapsOfNodes runs both controllers while a remote's nodes publish maps of its pod subnets.
func TestMapsOfNodes(t *testing.T) {
	remote := []string{"deploy/remote/service-mirror.yaml", "deploy/remote/policy.yaml"}
	b := newBed(t, map[string][]string{
		"gcp": {"deploy/service-mirror/rbac.yaml", "deploy/service-mirror/admission.yaml", "deploy/policy/rbac.yaml", "deploy/policy/admission.yaml", "policy/testdata/v3.yaml"},
		"aws": remote, "merit": remote,
	})
	m := &mapBed{mirrorBed: &mirrorBed{b}, policies: &policyBed{b}}
	m.sets = m.policies.sets(t, m.gcp)
	createNamespace(t, m.aws, "shop")
	for _, n := range []string{"n-1", "n-2"} {
		m.publish(t, n, toVirtual)
	}
	sl := slice(svc("web"), "web-1", "10.4.0.1", "10.4.0.2")
	for i := range sl.Endpoints {
		node := fmt.Sprint("n-", i+1)
		sl.Endpoints[i].NodeName = &node
	}
	must(t, putService(t.Context(), m.aws, "shop", svc("web"), sl))
	for i := range 2 {
		p := running("shop", fmt.Sprint("p-", i+1), "web", fmt.Sprint("10.4.0.", i+1))
		p.node = fmt.Sprint("n-", i+1)
		putPods(t, m.aws, p)
	}
	t.Run("are followed node by node", m.testFollow)
	t.Run("are read before anything is written", m.testRestart)
	t.Run("are not needed where nodes are forbidden", m.testForbidden)
}

// publish creates or changes a node of aws, with the map that its agent publishes; empty: none.
func (m *mapBed) publish(t *testing.T, name, text string) {
	t.Helper()
	nodes := m.aws.Client().CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	value := "null"
	if text != "" {
		value = fmt.Sprintf("%q", text)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"wireguard.semaphore.uw.io/podCIDRs":"10.4.0.0/24",%q:%s}}}`, config.SubnetMapAnnotation, value)
	_, err = nodes.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// controllers runs both until the test ends or stop is called, with these pod subnets of aws.
func (m *mapBed) controllers(t *testing.T, subnets ...string) (mirrors *mirrorInstance, sets *policyInstance) {
	t.Helper()
	var prefixes []netip.Prefix
	for _, text := range subnets {
		prefixes = append(prefixes, netip.MustParsePrefix(text))
	}
	mirrors = m.start(t, func(cfg *mirror.Config) {
		cfg.Remotes = slices.DeleteFunc(cfg.Remotes, func(r mirror.Remote) bool { return r.Name != "aws" })
		cfg.Remotes[0].PodSubnets = prefixes
	})
	sets = m.policies.start(t, m.gcp, func(cfg *policy.Config) { cfg.Remotes[0].Rules.Subnets = prefixes }, m.aws)
	return mirrors, sets
}

// want waits until both have these addresses.
func (m *mapBed) want(t *testing.T, addresses ...string) {
	t.Helper()
	m.leadsTo(t, webName, addresses...)
	expect(t, m.sets, contents{"aws-shop-web": set("aws", "shop", "web", addresses...)})
}

// state waits until both say what is known of the map.
func (m *mapBed) state(t *testing.T, mirrors *mirrorInstance, sets *policyInstance, want string) {
	t.Helper()
	wait(t, "the status of the map", func() error {
		at := slices.IndexFunc(mirrors.Status().Clusters, func(c status.MirrorCluster) bool { return c.Name == "aws" })
		of, by := mirrors.Status().Clusters[at].PodSubnetsMap, sets.status(t, "aws").PodSubnetsMap
		if of.State != want || by.State != want {
			return fmt.Errorf("%+v, %+v, want %s", of, by, want)
		}
		return nil
	})
}

// neverLess ends recorders, and fails the test for each version of the slice and the set with less
// than two addresses.
func (m *mapBed) neverLess(t *testing.T, recorders ...*recorder) {
	t.Helper()
	versions := 0
	for _, r := range recorders {
		r.end(t)
		r.replay(func(v version, s state) {
			versions++
			for _, set := range networkSets(s) {
				if len(set.Spec.Nets) < 2 {
					t.Errorf("%s has %v", v.key, set.Spec.Nets)
				}
			}
			if len(networkSets(s)) > 0 {
				return
			}
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
	}
	if versions == 0 {
		t.Error("nothing was recorded")
	}
	t.Logf("%d versions of slices and sets, none with less than two addresses", versions)
}

// testFollow moves a running mesh to virtual addresses, to others and back.
func (m *mapBed) testFollow(t *testing.T) {
	mirrors, sets := m.controllers(t, "10.4.0.0/16", "10.200.0.0/15")
	m.want(t, "10.200.0.1", "10.200.0.2")
	m.state(t, mirrors, sets, status.MapKnown)
	slices, networks := m.record(t), recordSets(t, m.sets)
	m.publish(t, "n-1", toOther)
	m.want(t, "10.200.0.2", "10.201.0.1")
	m.state(t, mirrors, sets, status.MapDiffers)
	m.publish(t, "n-2", toOther)
	m.want(t, "10.201.0.1", "10.201.0.2")
	m.state(t, mirrors, sets, status.MapKnown)
	still := mirrors.still(t)
	m.publish(t, "n-1", toOther+" ")
	m.publish(t, "n-3", toOther)
	if n := mirrors.still(t); n != still {
		t.Errorf("%d writes for the same map", n-still)
	}
	m.publish(t, "n-1", "")
	m.want(t, "10.201.0.2", "10.4.0.1")
	m.publish(t, "n-2", "")
	m.publish(t, "n-3", "")
	m.want(t, "10.4.0.1", "10.4.0.2")
	m.state(t, mirrors, sets, status.MapNone)
	m.publish(t, "n-1", toVirtual)
	m.publish(t, "n-2", toVirtual)
	m.publish(t, "n-3", "no map")
	m.want(t, "10.200.0.1", "10.200.0.2")
	m.state(t, mirrors, sets, status.MapBad)
	m.neverLess(t, slices, networks)
	must(t, m.aws.Client().CoreV1().Nodes().Delete(t.Context(), "n-3", metav1.DeleteOptions{}))
	m.state(t, mirrors, sets, status.MapKnown)
	mirrors.stop()
	sets.stop()
}

// testRestart restarts both with nothing but the virtual subnet.
func (m *mapBed) testRestart(t *testing.T) {
	slices, networks := m.record(t), recordSets(t, m.sets)
	mirrors, sets := m.controllers(t, "10.200.0.0/16")
	m.state(t, mirrors, sets, status.MapKnown)
	m.want(t, "10.200.0.1", "10.200.0.2")
	mirrors.still(t)
	slices.end(t)
	networks.end(t)
	if all := append(slices.all(), networks.all()...); len(all) > 0 {
		t.Errorf("a restart wrote %v", all)
	}
	mirrors.stop()
	sets.stop()
}

// testForbidden takes away the rights on nodes, as in an earlier release, and gives them again.
func (m *mapBed) testForbidden(t *testing.T) {
	roles := m.aws.Client().RbacV1().ClusterRoles()
	withNodes := map[string][]rbacv1.PolicyRule{}
	for _, name := range []string{programs.ServiceMirror + "-remote", programs.Policy + "-remote"} {
		role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		withNodes[name] = role.DeepCopy().Rules
		for i := range role.Rules {
			role.Rules[i].Resources = slices.DeleteFunc(role.Rules[i].Resources, func(r string) bool { return r == "nodes" })
		}
		_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
		must(t, err)
	}
	m.forbids(t)
	mirrors, sets := m.controllers(t, "10.4.0.0/16", "10.200.0.0/16")
	m.state(t, mirrors, sets, status.MapForbidden)
	m.want(t, "10.4.0.1", "10.4.0.2")
	for name, rules := range withNodes {
		role, err := roles.Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		role.Rules = rules
		_, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
		must(t, err)
	}
	slices, networks := m.record(t), recordSets(t, m.sets)
	m.want(t, "10.200.0.1", "10.200.0.2")
	m.state(t, mirrors, sets, status.MapKnown)
	m.neverLess(t, slices, networks)
	mirrors.stop()
	sets.stop()
}

// forbids waits until both accounts may not read nodes.
func (m *mapBed) forbids(t *testing.T) {
	t.Helper()
	for _, name := range []string{programs.ServiceMirror, programs.Policy} {
		must(t, m.aws.AwaitRight(t.Context(), home, name+"-remote", authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}, false))
	}
}
