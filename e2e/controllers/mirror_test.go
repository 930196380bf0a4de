package controllers_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// TestServiceMirror runs the controller of the service mirror on three API servers.
func TestServiceMirror(t *testing.T) {
	t.Parallel()
	b := newMirrorBed(t)
	for _, c := range []struct {
		name string
		test func(b *mirrorBed, t *testing.T)
	}{
		{"a shadow finds what is left to write", (*mirrorBed).testShadow},
		{"mirror of a service", (*mirrorBed).testMirror},
		{"headless service of a stateful set", (*mirrorBed).testHeadless},
		{"what can't be mirrored is refused alone", (*mirrorBed).testRefusals},
		{"long and colliding names", (*mirrorBed).testNames},
		{"drift is repaired", (*mirrorBed).testDrift},
		{"what isn't ours stays", (*mirrorBed).testForeign},
		{"global service", (*mirrorBed).testGlobal},
		{"mirrors of each other's mirrors", (*mirrorBed).testMirrorsOfMirrors},
		{"conflicts of a global service", (*mirrorBed).testConflicts},
		{"stale remote", (*mirrorBed).testStale},
		{"restart", (*mirrorBed).testRestart},
		{"restart while a remote is down", (*mirrorBed).testRestartBlind},
		{"remote that left in order", (*mirrorBed).testDeparted},
		{"objects of the original tool", (*mirrorBed).testTakeover},
		{"random histories", (*mirrorBed).testRandom},
		{"killed again and again", (*mirrorBed).testKills},
		{"remote that comes and goes", (*mirrorBed).testFlapping},
		{"a tenant that rewrites large slices", (*mirrorBed).testFlood},
		{"a policy that changes Services", (*mirrorBed).testOverridden},
		{"a controller that changes objects again", (*mirrorBed).testOverriddenByAnother},
	} {
		t.Run(c.name, func(t *testing.T) {
			// After the controllers have ended.
			t.Cleanup(func() { b.clean(t) })
			c.test(b, t)
		})
	}
}

func (b *mirrorBed) testMirror(t *testing.T) {
	i := b.start(t, nil)
	timeout, grpc := int32(600), "kubernetes.io/h2c"
	s := svc("fluentd", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
		s.Spec.PublishNotReadyAddresses = true
		policy := corev1.IPFamilyPolicyRequireDualStack
		s.Spec.IPFamilyPolicy = &policy
	}, ports(
		corev1.ServicePort{Name: "forward", Port: 8888, NodePort: 30888, Protocol: corev1.ProtocolTCP, AppProtocol: &grpc},
		corev1.ServicePort{Name: "udp", Port: 8889, NodePort: 30889, Protocol: corev1.ProtocolUDP},
	))
	four, six := slice(s, "fluentd-abc", "10.4.0.2", "10.4.0.3"), slice(s, "fluentd-six", "fd00:10:4::2")
	no := false
	four.Endpoints[1].Conditions.Ready = &no
	must(t, putService(t.Context(), b.aws, "sys-log", s, four, six))

	got := b.service(t, "aws-sys-log-73736d-fluentd")
	b.leadsTo(t, got.Name, "10.4.0.2", "10.4.0.3", "fd00:10:4::2")
	if got.Spec.Type != corev1.ServiceTypeClusterIP || len(got.Spec.ClusterIPs) != 2 || len(got.Spec.Selector) != 0 {
		t.Errorf("type %s, addresses %v, selector %v", got.Spec.Type, got.Spec.ClusterIPs, got.Spec.Selector)
	}
	for _, p := range got.Spec.Ports {
		if p.NodePort != 0 {
			t.Errorf("port %s has node port %d", p.Name, p.NodePort)
		}
	}
	if p := got.Spec.Ports; len(p) != 2 || p[0].Port != 8888 || *p[0].AppProtocol != grpc || p[1].Protocol != corev1.ProtocolUDP {
		t.Errorf("ports %+v", p)
	}
	if *got.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != timeout || !got.Spec.PublishNotReadyAddresses {
		t.Errorf("affinity %+v, publish not ready %v", got.Spec.SessionAffinityConfig, got.Spec.PublishNotReadyAddresses)
	}
	if diff := cmp.Diff(map[string]string{labelMirrored: "true", labelPrefix: "aws"}, got.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{annotCluster: "aws", annotNamespace: "sys-log", annotName: "fluentd"}, got.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	yes := true
	for _, sl := range b.slices(t, got.Name) {
		if sl.Labels[discoveryv1.LabelManagedBy] != programs.ServiceMirror {
			t.Errorf("slice %s is managed by %q", sl.Name, sl.Labels[discoveryv1.LabelManagedBy])
		}
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			want := discoveryv1.Endpoint{
				Addresses:  e.Addresses,
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			}
			if e.Addresses[0] == "10.4.0.3" {
				want.Conditions.Ready = &no
			}
			// No node, zone, hint or pod.
			if diff := cmp.Diff(want, *e); diff != "" {
				t.Errorf("endpoint (-want +got):\n%s", diff)
			}
		}
		if p := sl.Ports; len(p) != 2 || *p[0].Name != "forward" || *p[0].Port != 16888 || *p[0].AppProtocol != grpc {
			t.Errorf("ports of slice %s: %+v", sl.Name, p)
		}
	}

	// One endpoint more is one request.
	before := b.quiet(t, i)
	four.Endpoints = append(four.Endpoints, kubetest.Endpoints("10.4.0.4")...)
	must(t, putSlice(t.Context(), b.aws, "sys-log", four))
	b.leadsTo(t, got.Name, "10.4.0.2", "10.4.0.3", "10.4.0.4", "fd00:10:4::2")
	if n := b.quiet(t, i) - before; n != 1 {
		t.Errorf("%d writes for one endpoint, want 1", n)
	}
	// Changes of what isn't mirrored cost none.
	before = b.quiet(t, i)
	four.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
	slices.Reverse(four.Endpoints)
	must(t, putSlice(t.Context(), b.aws, "sys-log", four))
	patchService(t, b.aws, "sys-log", "fluentd", `{"metadata":{"annotations":{"irrelevant":"here"}}}`)
	if n := b.quiet(t, i) - before; n != 0 {
		t.Errorf("%d writes for what is not mirrored, want none", n)
	}

	must(t, removeService(t.Context(), b.aws, "sys-log", "fluentd"))
	b.gone(t, got.Name)
}

func (b *mirrorBed) testHeadless(t *testing.T) {
	b.start(t, nil)
	s := svc("db", headless, ports())
	sl := slice(s, "db-1", "10.4.0.2", "10.4.0.3")
	for i, name := range []string{"db-0", "db-1"} {
		sl.Endpoints[i].Hostname = &name
	}
	must(t, putService(t.Context(), b.aws, "data", s, sl))
	got := b.service(t, "aws-data-73736d-db")
	if got.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("address %s, want none", got.Spec.ClusterIP)
	}
	b.leadsTo(t, got.Name, "10.4.0.2", "10.4.0.3")
	local := b.slices(t, got.Name)[0]
	if _, ok := local.Labels[corev1.IsHeadlessService]; !ok {
		t.Errorf("labels %v, want the one that kube-proxy ignores", local.Labels)
	}
	for i, name := range []string{"db-0", "db-1"} {
		if h := local.Endpoints[i].Hostname; h == nil || *h != name {
			t.Errorf("hostname %d: %v, want %s", i, h, name)
		}
	}

	// A service can't become headless, or stop being headless: it must be replaced.
	must(t, removeService(t.Context(), b.aws, "data", "db"))
	must(t, putService(t.Context(), b.aws, "data", svc("db"), slice(svc("db"), "db-2", "10.4.0.4")))
	b.leadsTo(t, got.Name, "10.4.0.4")
	if now := b.service(t, got.Name); now.Spec.ClusterIP == corev1.ClusterIPNone || now.UID == got.UID {
		t.Errorf("address %s of %s", now.Spec.ClusterIP, now.UID)
	}
}
