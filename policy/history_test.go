package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// member is a net of a set, as text.
type member struct{ set, net string }

// history is what remotes say and other clients do, beside a model of what follows that knows
// neither events nor objects.
type history struct {
	*rig
	t      *testing.T
	random *rand.Rand
	remote map[string]map[string]*corev1.Pod // by remote and name
	steps  []string

	mu      sync.Mutex
	allowed map[member]bool // by the model before the step and after each change in it
}

// TestHistories changes pods, remotes and network sets at random. No write adds a net that no pod
// of its set has, none stays, and in the end each set has all of them.
func TestHistories(t *testing.T) {
	for seed := range rounds(60, 8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				h := &history{
					t: t, random: rand.New(rand.NewPCG(uint64(seed), 4)),
					remote: map[string]map[string]*corev1.Pod{"gcp": {}, "merit": {}},
				}
				h.rig = startRig(t, kubetest.NewAPI(), func(cfg *Config) {
					cfg.ShardSize = 4
					for i := range cfg.Remotes {
						cfg.Remotes[i].StaleAfter = 30 * time.Second
					}
					rules := &cfg.Remotes[0].Rules
					if err := rules.Map.Decode("10.4.0.0/16=10.104.0.0/16"); err != nil {
						t.Fatal(err)
					}
					rules.Subnets = []netip.Prefix{netip.MustParsePrefix("10.104.0.0/16")}
				})
				h.allow(nil)
				h.watch(nil)
				for range 50 {
					h.step()
					if t.Failed() {
						t.Fatalf("after\n  %s\n%s", strings.Join(h.steps, "\n  "), h.log)
					}
				}
			})
		})
	}
}

// want returns the model: which pods are in which sets.
func (h *history) want() map[member]bool {
	want := map[member]bool{}
	for remote, pods := range h.remote {
		for _, p := range pods {
			set, labelled := p.Labels[podLabel]
			if !labelled || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				continue
			}
			for _, ip := range p.Status.PodIPs {
				net := ip.IP + "/32"
				if remote == "gcp" {
					net = strings.Replace(net, "10.4.", "10.104.", 1)
				}
				if remote == "merit" && !strings.HasPrefix(net, "127.") || strings.HasPrefix(net, "10.104.") {
					want[member{remote + "/ns/" + set, net}] = true
				}
			}
		}
	}
	return want
}

// has returns what the network sets of a remote have, and their number.
func (h *history) has(remote string) (has map[member]bool, number int) {
	has = map[member]bool{}
	for _, set := range kubetest.All[calico.GlobalNetworkSet](h.sets, kube.NetworkSets, "") {
		o := domain().observe(&set)
		if !o.Owned || o.Identity.Cluster != remote {
			continue
		}
		number++
		for _, net := range set.Spec.Nets {
			has[member{o.Identity.String(), net}] = true
		}
	}
	return has, number
}

func (h *history) step() {
	h.allow(h.want())
	remote := []string{"gcp", "merit"}[h.random.IntN(2)]
	switch h.random.IntN(10) {
	case 0:
		h.note("%s can't be reached for three minutes", remote)
		_, number := h.has(remote)
		h.pods[remote].Stop()
		h.change(remote)
		elapse(3 * time.Minute)
		if has, empty := h.has(remote); len(has) > 0 || empty != number {
			h.t.Errorf("%d sets of a stale remote have %v, want %d without nets", empty, has, number)
		}
		h.allow(h.want())
		h.pods[remote].Start()
	case 1:
		h.note("a new leader while %s can't be reached", remote)
		h.pods[remote].Stop()
		h.change(remote)
		before, _ := h.has(remote)
		h.rig = h.restart(h.t)
		elapse(10 * time.Second)
		if has, _ := h.has(remote); !maps.Equal(has, before) {
			h.t.Errorf("sets of a remote that has not been read (-before +now):\n%s", cmp.Diff(before, has))
		}
		h.pods[remote].Start()
	case 2:
		h.meddle()
	case 3:
		verb := []string{kubetest.Patch, "create"}[h.random.IntN(2)]
		h.note("each %s is refused", verb)
		h.watch(func(q kubetest.Request) bool { return q.Verb == verb })
		h.change(remote)
		h.goneAtOnce()
	default:
		for range 1 + h.random.IntN(4) {
			h.change(remote)
		}
		h.goneAtOnce()
	}
	h.watch(nil)
	for range 3 {
		h.beat()
		elapse(time.Minute)
	}
	h.check()
}

// beat makes each remote send something: a server without any bookmarks for two minutes is stale.
func (h *history) beat() {
	for _, api := range h.pods {
		p := podObject("ns", "beat", "beat", corev1.PodPending)
		p.Annotations = map[string]string{"at": time.Now().String()}
		api.Put(h.t, "pods", p)
	}
}

// allow sets what writes may add to network sets.
func (h *history) allow(allowed map[member]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.allowed = allowed
}

// say adds what remotes say by now.
func (h *history) say() {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.Copy(h.allowed, h.want())
}

func (h *history) note(format string, args ...any) {
	h.steps = append(h.steps, fmt.Sprintf(format, args...))
}

// watch checks all writes, and refuses some.
func (h *history) watch(refused func(kubetest.Request) bool) {
	h.sets.Hook(func(hooks *kubetest.Hooks) {
		hooks.Admit = func(q kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
			if refused != nil && refused(q) {
				return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
			}
			nets, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "nets")
			l := o.GetLabels()
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, net := range nets {
				m := member{fmt.Sprintf("%s/%s/%s", l[domain().Domain+"/cluster"], l[domain().Domain+"/namespace"], l[podLabel]), net}
				if !h.allowed[m] {
					h.t.Errorf("%v with %v, which no pod has", q, m)
				}
			}
			return nil
		}
	})
}

// change changes a pod of a remote.
func (h *history) change(remote string) {
	name := fmt.Sprint("p-", h.random.IntN(20))
	p := h.remote[remote][name]
	if p != nil && h.random.IntN(3) == 0 {
		h.note("%s %s is deleted", remote, name)
		delete(h.remote[remote], name)
		h.say()
		h.pods[remote].Remove("pods", "ns", name)
		return
	}
	ip := fmt.Sprintf("10.4.0.%d", 1+h.random.IntN(25))
	set := []string{"a", "b", "A"}[h.random.IntN(3)]
	phase := corev1.PodRunning
	switch h.random.IntN(8) {
	case 0:
		phase = corev1.PodSucceeded
	case 1:
		ip = []string{"127.0.0.1", "10.9.0.1", "10.104.0.1", ""}[h.random.IntN(4)]
	case 2: // Another label alone.
		if p != nil && len(p.Status.PodIPs) > 0 {
			ip = p.Status.PodIPs[0].IP
		}
	}
	p = podObject("ns", name, set, phase)
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	switch h.random.IntN(10) {
	case 0:
		p.Labels = nil
	case 1:
		p.Spec.HostNetwork = true
	}
	h.note("%s %s: label %v, %s, address %s, host network %v", remote, name, p.Labels, phase, ip, p.Spec.HostNetwork)
	h.remote[remote][name] = p.DeepCopy()
	h.say()
	h.pods[remote].Put(h.t, "pods", p)
}

// meddle changes a network set, as another client does, or takes a name.
func (h *history) meddle() {
	all := kubetest.All[calico.GlobalNetworkSet](h.sets, kube.NetworkSets, "")
	if len(all) == 0 || h.random.IntN(6) == 0 {
		name := fmt.Sprintf("gcp-ns-%s", []string{"a", "b", "a-2", "b-2"}[h.random.IntN(4)])
		h.note("another client takes the name %s", name)
		putSet(h.t, h.sets, &calico.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: calico.GlobalNetworkSetSpec{Nets: []string{"192.0.2.0/24"}}})
		return
	}
	set := &all[h.random.IntN(len(all))]
	o := domain().observe(set)
	switch change := h.random.IntN(5); {
	case change == 0 || !o.Owned:
		h.note("another client deletes %s", set.Name)
		removeSet(h.sets, set.Name)
		return
	case change == 1:
		set.Labels[podLabel] = "other"
	case change == 2:
		delete(set.Labels, domain().Domain+"/namespace")
	case change == 3:
		set.Spec.Nets = nil
	default:
		set.Spec.Nets = append(set.Spec.Nets, "0.0.0.0/0")
	}
	h.note("another client changes %s: %v %v", set.Name, set.Labels, set.Spec.Nets)
	putSet(h.t, h.sets, set)
}

// goneAtOnce checks that what must be in no set is in none.
func (h *history) goneAtOnce() {
	h.t.Helper()
	elapse(passSpacing + writeSpacing)
	want := h.want()
	for remote := range h.remote {
		has, _ := h.has(remote)
		for m := range has {
			if !want[m] {
				h.t.Errorf("%v stays", m)
			}
		}
	}
}

// check compares the sets with the model.
func (h *history) check() {
	h.t.Helper()
	has := map[member]bool{}
	for remote := range h.remote {
		some, _ := h.has(remote)
		maps.Copy(has, some)
	}
	if diff := cmp.Diff(h.want(), has); diff != "" {
		h.t.Errorf("sets (-want +got):\n%s", diff)
	}
	if failing := h.Status().Remotes; len(failing[0].Failing)+len(failing[1].Failing) > 0 {
		h.t.Errorf("failing: %v, %v", failing[0].Failing, failing[1].Failing)
	}
}
