package verify

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

// maintenance is a cluster aws, whose pods ask, and gcp, which is drained. In aws the global service
// web has endpoints in both clusters, and db in gcp only.
type maintenance struct {
	aws, gcp *cli.Cluster
	out      strings.Builder
	// deaf is whether the mirror of aws ignores the mark, lost how many requests a pod loses.
	deaf bool
	lost int
	// patched is called after each change of the mark; its error is that of the answer.
	patched func(on bool) error
	drains  int
}

func (m *maintenance) slice(service, from string) *discoveryv1.EndpointSlice {
	ready, port := true, int32(80)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cli.Namespace, Name: service + "-" + from, Annotations: map[string]string{"mirror.semaphore.uw.io/cluster": from},
			Labels: map[string]string{discoveryv1.LabelManagedBy: inspect.ServiceMirror, discoveryv1.LabelServiceName: "gl-" + service},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}
}

func newMaintenance(t *testing.T) *maintenance {
	t.Helper()
	m := &maintenance{patched: func(bool) error { return nil }}
	var objects []runtime.Object
	for _, service := range []string{"web", "db"} {
		objects = append(objects, &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: cli.Namespace, Name: "gl-" + service, Labels: map[string]string{"mirrored-svc": "true"},
			Annotations: map[string]string{"mirror.semaphore.uw.io/namespace": "shop", "mirror.semaphore.uw.io/name": service},
		}})
	}
	aws := fake.NewClientset(append(objects, m.slice("web", "aws"), m.slice("web", "gcp"), m.slice("db", "gcp"))...)
	gcp := fake.NewClientset(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}})
	gcp.PrependReactor("patch", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		on := strings.Contains(string(a.(clienttesting.PatchAction).GetPatch()), `:"true"`)
		err := m.patched(on)
		if !m.deaf {
			slices := aws.DiscoveryV1().EndpointSlices(cli.Namespace)
			if on {
				_ = slices.Delete(context.Background(), "web-gcp", metav1.DeleteOptions{})
			} else {
				_, _ = slices.Create(context.Background(), m.slice("web", "gcp"), metav1.CreateOptions{})
			}
		}
		if on {
			m.drains++
		}
		return err != nil, nil, err
	})
	pods := map[string]*corev1.Pod{}
	aws.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := a.(clienttesting.CreateAction).GetObject().(*corev1.Pod).DeepCopy()
		pod.Name, pod.CreationTimestamp = "pod", metav1.Now()
		pods[pod.Name] = pod
		return true, pod, nil
	})
	aws.PrependReactor("get", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		pod := pods[a.(clienttesting.GetAction).GetName()].DeepCopy()
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.2.1.7"}}}
		var request reach.Request
		if err := json.Unmarshal([]byte(pod.Spec.Containers[0].Command[2]), &request); err != nil {
			t.Error(err)
		}
		if time.Since(pod.CreationTimestamp.Time) > time.Duration(request.AskFor)*time.Second {
			var result reach.Result
			for _, ask := range request.Asks {
				one := reach.ServiceResult{Sent: 100, Lost: m.lost}
				if m.lost > 0 {
					one.Failed = map[string]string{ask.Addresses[0]: "i/o timeout"}
				}
				result.Services = append(result.Services, one)
			}
			message, err := result.Encode()
			if err != nil {
				t.Error(err)
			}
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(message)}}}}
		}
		return true, pod, nil
	})
	m.aws, m.gcp = &cli.Cluster{Name: "aws", Access: cli.Access{Context: "aws"}, Client: aws}, &cli.Cluster{Name: "gcp", Access: cli.Access{Context: "prod gcp"}, Client: gcp}
	return m
}

func (m *maintenance) run(ctx context.Context) (*Report, error) {
	s := cli.NewSession(strings.NewReader(""), &m.out, &m.out)
	d := &draining{Session: s, cluster: m.gcp, lasts: drainFor}
	aws := &inspect.Cluster{Name: "aws"}
	aws.Imports.Value = []inspect.KubeService{
		{Namespace: "shop", Name: "web", Object: "gl-web", ClusterIPs: []string{"10.96.0.7"}, Port: 80},
		{Namespace: "shop", Name: "db", Object: "gl-db", ClusterIPs: []string{"10.96.0.8"}, Port: 80},
		{Namespace: "shop", Name: "web", Object: "gcp-web", Origin: "gcp", ClusterIPs: []string{"10.96.0.9"}, Port: 80},
	}
	aws.Nodes.Value, aws.Workloads.Value = []inspect.Node{{Name: "aws-1", Ready: "True"}}, []inspect.Workload{{Name: inspect.WireGuard, Image: "ours"}}
	return d.run(ctx, []*cli.Cluster{m.aws, m.gcp}, []*inspect.Cluster{aws, {Name: "gcp"}}, probe.Plan{Nodes: 1})
}

// isDrained reads the mark.
func (m *maintenance) isDrained(t *testing.T) bool {
	t.Helper()
	service, err := m.gcp.Client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service.Annotations[drainMark] != ""
}

const undoes = "kubectl --context 'prod gcp' -n default annotate service kubernetes mirror.semaphore.uw.io/drained-"

// TestDrain drains a cluster, with what pods and mirrors may do meanwhile, and checks that it isn't
// drained afterwards.
func TestDrain(t *testing.T) {
	for title, tt := range map[string]struct {
		change func(m *maintenance)
		want   State
		says   []string
	}{
		"nothing is lost": {want: Right, says: []string{
			"aws db.shop.svc.cluster.global right: 0 of 100 requests lost; only gcp has ready endpoints, which stay in use",
			"aws web.shop.svc.cluster.global right: 0 of 100 requests lost; they left gcp within 0.0 s",
		}},
		"requests are lost": {change: func(m *maintenance) { m.lost = 3 }, want: Wrong, says: []string{
			"aws db.shop.svc.cluster.global wrong: 3 of 100 requests lost, from aws-1 to 10.96.0.8:80: i/o timeout",
			"aws web.shop.svc.cluster.global wrong: 3 of 100 requests lost, from aws-1 to 10.96.0.7:80: i/o timeout",
		}},
		"the mirror doesn't see it": {change: func(m *maintenance) { m.deaf = true }, want: Wrong, says: []string{
			"aws db.shop.svc.cluster.global right: 0 of 100 requests lost; only gcp has ready endpoints, which stay in use",
			"aws web.shop.svc.cluster.global wrong: 0 of 100 requests lost; endpoints of gcp are in use after 20s: see semaphorectl doctor about semaphore-service-mirror of aws",
		}},
		"endpoints elsewhere become unready": {change: func(m *maintenance) {
			m.deaf = true
			m.patched = func(bool) error {
				_ = m.aws.Client.DiscoveryV1().EndpointSlices(cli.Namespace).Delete(context.Background(), "web-aws", metav1.DeleteOptions{})
				return nil
			}
		}, want: Wrong, says: []string{
			"aws db.shop.svc.cluster.global right: 0 of 100 requests lost; only gcp has ready endpoints, which stay in use",
			"aws web.shop.svc.cluster.global wrong: 0 of 100 requests lost; endpoints of gcp are in use after 20s: see semaphorectl doctor about semaphore-service-mirror of aws",
		}},
		"there are no such services": {change: func(m *maintenance) {
			for _, service := range []string{"web-gcp", "db-gcp"} {
				_ = m.aws.Client.DiscoveryV1().EndpointSlices(cli.Namespace).Delete(context.Background(), service, metav1.DeleteOptions{})
			}
		}, want: Unknown, says: []string{" gcp not known: no global service or import of the other clusters has ready endpoints there"}},
		"endpoints can't be read": {change: func(m *maintenance) {
			m.aws.Client.(*fake.Clientset).PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("forbidden")
			})
		}, want: Unknown, says: []string{"aws  not known: its services can't be read: list EndpointSlices: forbidden"}},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMaintenance(t)
				if tt.change != nil {
					tt.change(m)
				}
				r, err := m.run(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var says []string
				for _, row := range r.Rows {
					says = append(says, row.From+" "+row.To+" "+string(row.State)+": "+row.Found)
				}
				if diff := cmp.Diff(tt.says, says); diff != "" || r.Verdict != tt.want {
					t.Errorf("the verdict is %s, want %s (-want +got):\n%s", r.Verdict, tt.want, diff)
				}
				if m.isDrained(t) || m.drains > 0 && !strings.Contains(m.out.String(), undoes) || (m.drains > 0) != strings.Contains(m.out.String(), "gcp is no longer drained") {
					t.Errorf("drained: %t, after %d times\n%s", m.isDrained(t), m.drains, m.out.String())
				}
			})
		})
	}
}

// TestDrainIsUndone ends the drained state by an interruption, and with an API server that doesn't
// answer, for a while and for good.
func TestDrainIsUndone(t *testing.T) {
	for title, tt := range map[string]struct {
		patched func(m *maintenance, end func()) func(on bool) error
		left    bool
		want    string
	}{
		"interrupted": {
			patched: func(_ *maintenance, end func()) func(bool) error {
				return func(bool) error { time.AfterFunc(3*time.Second, end); return nil }
			}, want: context.Canceled.Error(),
		},
		"the connection is lost for a while": {
			patched: func(_ *maintenance, _ func()) func(bool) error {
				failures := 3
				return func(on bool) error {
					if failures--; !on && failures > 0 {
						return errors.New("connection reset")
					}
					return nil
				}
			},
		},
		"the connection is lost for good": {
			patched: func(*maintenance, func()) func(bool) error {
				return func(on bool) error {
					if on {
						return nil
					}
					return errors.New("connection reset")
				}
			}, left: true, want: "gcp may still be drained: connection reset\ngcp may still be drained, undo it: " + undoes,
		},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMaintenance(t)
				ctx, end := context.WithCancel(t.Context())
				defer end()
				m.patched = tt.patched(m, end)
				_, err := m.run(ctx)
				if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("%v, want %q", err, tt.want)
				}
				if m.isDrained(t) != tt.left || m.drains != 1 {
					t.Errorf("drained: %t, after %d times\n%s", m.isDrained(t), m.drains, m.out.String())
				}
				// A second run refuses to undo what it hasn't done.
				if tt.left {
					_, err := m.run(t.Context())
					if err == nil || !strings.Contains(err.Error(), "gcp is drained already") || !strings.Contains(err.Error(), undoes) || m.drains != 1 {
						t.Errorf("%v, after %d times", err, m.drains)
					}
				}
			})
		})
	}
}

// TestDrainRefused checks that a pod or a right that is missing changes nothing.
func TestDrainRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMaintenance(t)
		m.aws.Client.(*fake.Clientset).PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("exceeded quota")
		})
		if _, err := m.run(t.Context()); err == nil || !strings.Contains(err.Error(), "the pod on aws/aws-1 failed: exceeded quota") || m.drains > 0 {
			t.Errorf("%v, after %d times", err, m.drains)
		}
	})
}

// TestDrainArguments checks the flags of --drain.
func TestDrainArguments(t *testing.T) {
	for want, args := range map[string][]string{
		"--drain merit: expected a cluster of the arguments": {"--drain", "merit"},
		"--duration 2s: with --drain at least 5s":            {"--drain", "gcp", "--duration", "2s"},
		"--duration 51s: 1s to 50s":                          {"--drain", "gcp", "--duration", "51s"},
		"--streams has no effect with --drain":               {"--drain", "gcp", "--streams", "2"},
		"--skip has no effect with --drain":                  {"--drain", "gcp", "--skip", "name"},
	} {
		var out strings.Builder
		cmd := Command(cli.NewSession(strings.NewReader(""), &out, &out))
		cmd.SetArgs(append([]string{"aws", "gcp"}, args...))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
