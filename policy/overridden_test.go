package policy

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// admit makes an API server call admission for each network set that is created or changed.
func admit(api *kubetest.API, admission func(verb string, set *unstructured.Unstructured) *metav1.Status) {
	api.Hook(func(h *kubetest.Hooks) {
		h.Admit = func(r kubetest.Request, o *unstructured.Unstructured) *metav1.Status {
			if r.Resource != kube.NetworkSets || admission == nil {
				return nil
			}
			return admission(r.Verb, o)
		}
	})
}

// number returns how many requests have a verb.
func number(api *kubetest.API, verb string) (n int) {
	for _, r := range requests(api) {
		if strings.HasPrefix(r, verb+" ") {
			n++
		}
	}
	return n
}

// TestSetThatAdmissionChangesIsWrittenOnce has a policy that adds a net to each set.
func TestSetThatAdmissionChangesIsWrittenOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		admit(r.sets, func(_ string, set *unstructured.Unstructured) *metav1.Status {
			nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
			if !slices.Contains(nets, "192.0.2.1/32") {
				_ = unstructured.SetNestedStringSlice(set.Object, append(nets, "192.0.2.1/32"), "spec", "nets")
			}
			return nil
		})
		r.put(t, "1", "a", "10.4.0.1")
		elapse(keep.LongestWait / 2)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32 192.0.2.1/32"})
		if all := writes(r.sets); len(all) != 1 {
			t.Errorf("writes %q, want one", all)
		}
		if o := r.Status().Remotes[0].Overridden; len(o) != 1 || o[0].Object != "network set gcp-ns-a" {
			t.Errorf("%+v", o)
		}
		// A changed set is written once, without a gap.
		r.put(t, "2", "a", "10.4.0.2")
		elapse(time.Second)
		r.put(t, "3", "a", "10.4.0.3")
		elapse(time.Second)
		r.drop("1")
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32 10.4.0.3/32 192.0.2.1/32"})
		if number(r.sets, "patch") != 3 || number(r.sets, "delete") > 0 {
			t.Errorf("writes %q, want three patches", writes(r.sets))
		}
		admit(r.sets, nil)
		elapse(keep.LongestWait)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32 10.4.0.3/32"})
		if o := r.Status().Remotes[0].Overridden; len(o) > 0 {
			t.Errorf("%+v", o)
		}
	})
}

// TestWhatAdmissionPutsBackStays has a policy that keeps the old nets of each set, or adds others,
// while leaders change, and pods are deleted. A set is never deleted, each is reported, and an
// address that admission lets go is gone.
func TestWhatAdmissionPutsBackStays(t *testing.T) {
	type nets = []string
	for name, c := range map[string]struct {
		// admission returns the stored nets.
		admission func(verb string, before, request nets) nets
		want      string
		final     string // once there is no such policy
	}{
		"a net is added": {
			func(_ string, _, request nets) nets { return append(request, "192.0.2.1/32") }, "10.4.0.3/32 192.0.2.1/32", "10.4.0.3/32",
		},
		"a range is added": {
			func(_ string, _, request nets) nets { return append(request, "192.0.2.0/24") }, "10.4.0.3/32 192.0.2.0/24", "10.4.0.3/32",
		},
		"patches keep the old ones": {
			func(verb string, before, request nets) nets {
				if verb == kubetest.Patch {
					request = append(request, before...)
				}
				return request
			}, "10.4.0.1/32 10.4.0.2/32 10.4.0.3/32", "10.4.0.3/32",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := startRig(t, kubetest.NewAPI(), nil)
				stored := nets{}
				admit(r.sets, func(verb string, set *unstructured.Unstructured) *metav1.Status {
					now, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
					now = c.admission(verb, stored, now)
					slices.Sort(now)
					stored = slices.Compact(now)
					_ = unstructured.SetNestedStringSlice(set.Object, stored, "spec", "nets")
					return nil
				})
				for i := range 3 {
					r.put(t, fmt.Sprint(i+1), "a", fmt.Sprintf("10.4.0.%d", i+1))
				}
				elapse(time.Second)
				for range 2 {
					r = r.restart(t)
					elapse(time.Minute)
				}
				for i := range 2 {
					r.drop(fmt.Sprint(i + 1))
					elapse(time.Second)
				}
				r.wantSets(t, map[string]string{"gcp-ns-a": c.want})
				before := len(writes(r.sets))
				elapse(keep.LongestWait / 2)
				if n := number(r.sets, "delete"); n > 0 || len(writes(r.sets)) > before {
					t.Errorf("%d deletions: %q", n, writes(r.sets))
				}
				if o := r.Status().Remotes[0].Overridden; len(o) != 1 {
					t.Errorf("%+v", o)
				}
				if events := r.conditions()[0].Conditions; len(events) != 1 || events[0].Reason != "Overridden" {
					t.Errorf("Events %+v", events)
				}
				if !strings.Contains(r.log.String(), "write overridden") {
					t.Errorf("log:\n%s", r.log)
				}
				admit(r.sets, nil)
				elapse(keep.LongestWait)
				r.wantSets(t, map[string]string{"gcp-ns-a": c.final})
				if o := r.Status().Remotes[0].Overridden; len(o) > 0 {
					t.Errorf("in the end %+v", o)
				}
			})
		})
	}
}

// restart stops a controller, and starts another one with the same configuration.
func (r *rig) restart(t *testing.T) *rig {
	t.Helper()
	r.stop()
	other := startRig(t, r.sets, func(cfg *Config) { cfg.Remotes = r.Remotes })
	other.pods = r.pods
	return other
}

// TestSetThatAnotherClientChangesWaitsLonger has a client that changes a set after each write.
func TestSetThatAnotherClientChangesWaitsLonger(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "1", "a", "10.4.0.1")
		r.put(t, "2", "a", "10.4.0.2")
		r.put(t, "3", "b", "10.4.0.3")
		elapse(time.Second)
		them := func(net string) func() {
			return func() {
				edit(t, r.sets, "gcp-ns-a", func(set *calico.GlobalNetworkSet) { set.Spec.Nets = []string{net} })
			}
		}
		them("10.4.0.1/32")()
		elapse(100 * time.Millisecond)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32 10.4.0.2/32", "gcp-ns-b": "10.4.0.3/32"})
		fight := func(net string) {
			r.sets.Hook(func(h *kubetest.Hooks) {
				h.Answer = func(request kubetest.Request) {
					if request.Name == "gcp-ns-a" {
						them(net)()
					}
				}
			})
			them(net)()
		}
		before := number(r.sets, "patch")
		fight("10.4.0.1/32")
		elapse(20 * time.Second)
		if n := number(r.sets, "patch") - before; n < 5 || n > 10 {
			t.Errorf("%d patches in 20 s, want a few", n)
		}
		if o := r.Status().Remotes[0].Overridden; len(o) != 1 {
			t.Errorf("%+v", o)
		}
		elapse(time.Hour)
		before = number(r.sets, "patch")
		elapse(time.Hour)
		if n := number(r.sets, "patch") - before; n < 4 || n > 10 {
			t.Errorf("%d patches in an hour, want one each ten minutes", n)
		}
		// A change of the pods doesn't wait at all.
		fight("0.0.0.0/0")
		elapse(time.Second)
		before = number(r.sets, "patch")
		r.drop("2")
		r.put(t, "4", "b", "10.4.0.4")
		elapse(100 * time.Millisecond)
		if n := number(r.sets, "patch") - before; n != 2 {
			t.Errorf("%d patches after two changes of pods", n)
		}
	})
}

// TestRemovalsThatAdmissionRefuses deletes a pod while admission refuses patches.
func TestRemovalsThatAdmissionRefuses(t *testing.T) {
	forbidden := kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
	broken := kubetest.Failure(http.StatusInternalServerError, metav1.StatusReasonInternalError)
	has := func(set *unstructured.Unstructured, net string) bool {
		nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
		return slices.Contains(nets, net)
	}
	for name, c := range map[string]struct {
		admission func(verb string, set *unstructured.Unstructured) *metav1.Status
		add       string
		after     time.Duration
		want      string // empty: no set
		failing   bool
		writes    string
	}{
		"all patches": {func(verb string, _ *unstructured.Unstructured) *metav1.Status {
			if verb == kubetest.Patch {
				return forbidden
			}
			return nil
		}, "", 100 * time.Millisecond, "10.4.0.2/32", false, "patch patch delete create"},
		"all patches and creations": {func(string, *unstructured.Unstructured) *metav1.Status { return forbidden },
			"", 100 * time.Millisecond, "", true, "patch patch delete create"},
		"an addition": {func(_ string, set *unstructured.Unstructured) *metav1.Status {
			if has(set, "10.4.0.3/32") {
				return forbidden
			}
			return nil
		}, "10.4.0.3", 100 * time.Millisecond, "10.4.0.2/32", true, "patch patch patch"},
		"patches without managed fields": {func(verb string, set *unstructured.Unstructured) *metav1.Status {
			if verb == kubetest.Patch && len(set.GetManagedFields()) == 0 {
				return forbidden
			}
			return nil
		}, "", 100 * time.Millisecond, "10.4.0.2/32", false, "patch patch"},
		"by a webhook that doesn't answer, at first": {func(verb string, _ *unstructured.Unstructured) *metav1.Status {
			if verb == kubetest.Patch {
				return broken
			}
			return nil
		}, "", time.Second, "10.4.0.1/32 10.4.0.2/32", true, ""},
		"by a webhook that doesn't answer": {func(verb string, _ *unstructured.Unstructured) *metav1.Status {
			if verb == kubetest.Patch {
				return broken
			}
			return nil
		}, "", 3 * removalPatience, "10.4.0.2/32", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := startRig(t, kubetest.NewAPI(), nil)
				r.put(t, "1", "a", "10.4.0.1")
				r.put(t, "2", "a", "10.4.0.2")
				elapse(time.Second)
				before := len(writes(r.sets))
				admit(r.sets, c.admission)
				r.drop("1")
				if c.add != "" {
					r.put(t, "3", "a", c.add)
				}
				elapse(c.after)
				want := map[string]string{}
				if c.want != "" {
					want["gcp-ns-a"] = c.want
				}
				r.wantSets(t, want)
				if failing := len(r.Status().Remotes[0].Failing) > 0; failing != c.failing {
					t.Errorf("failing: %v, want %v: %v", failing, c.failing, r.Status().Remotes[0].Failing)
				}
				got := strings.ReplaceAll(strings.Join(writes(r.sets)[before:], " "), " gcp-ns-a", "")
				if c.writes != "" && !strings.HasPrefix(got, c.writes) {
					t.Errorf("writes %q, want %q", got, c.writes)
				}
				admit(r.sets, nil)
				elapse(2 * lastRetry)
				final := "10.4.0.2/32"
				if c.add != "" {
					final = fmt.Sprintf("10.4.0.2/32 %s/32", c.add)
				}
				r.wantSets(t, map[string]string{"gcp-ns-a": final})
			})
		})
	}
}

// TestRemovalDoesntWaitForRefusedAdditions ends a pod while additions to its set are in back-off, which
// further ones don't shorten.
func TestRemovalDoesntWaitForRefusedAdditions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), func(cfg *Config) { cfg.Remotes[0].StaleAfter = 3 * time.Second })
		r.put(t, "1", "a", "10.4.0.1")
		r.put(t, "2", "a", "10.4.0.2")
		elapse(time.Second)
		admit(r.sets, func(_ string, set *unstructured.Unstructured) *metav1.Status {
			if nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets"); len(nets) > 1 && nets[len(nets)-1] > "10.4.0.2/32" {
				return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
			}
			return nil
		})
		before := len(writes(r.sets))
		for n := range 1000 {
			r.put(t, "3", "a", fmt.Sprintf("10.4.0.%d", 3+n%6))
			elapse(100 * time.Millisecond)
		}
		if n := len(writes(r.sets)) - before; n > 30 {
			t.Errorf("%d writes in 100 s, want a few", n)
		}
		r.drop("1")
		elapse(2 * writeSpacing)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32"})
		elapse(time.Minute)
		r.pods["gcp"].Stop()
		elapse(4 * time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": ""})
	})
}

// TestRemovalsThatHang has patches that are never answered. Those of other objects of the set come
// after them.
func TestRemovalsThatHang(t *testing.T) {
	for name, c := range map[string]struct {
		drop  string
		after time.Duration
		want  map[string]string
	}{
		"patch of one object":     {"1", removalPatience, map[string]string{"gcp-ns-a": "10.4.0.2/32", "gcp-ns-a-2": "10.4.0.3/32 10.4.0.4/32"}},
		"patches of both objects": {"13", 2 * removalPatience, map[string]string{"gcp-ns-a": "10.4.0.2/32", "gcp-ns-a-2": "10.4.0.4/32"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := startRig(t, kubetest.NewAPI(), func(cfg *Config) { cfg.ShardSize = 2 })
				for n := 1; n <= 4; n++ {
					r.put(t, fmt.Sprint(n), "a", fmt.Sprintf("10.4.0.%d", n))
					elapse(time.Second)
				}
				r.sets.Hook(func(h *kubetest.Hooks) { h.Silent = func(q kubetest.Request) bool { return q.Verb == kubetest.Patch } })
				for _, pod := range c.drop {
					r.drop(string(pod))
				}
				elapse(c.after + 100*time.Millisecond)
				r.wantSets(t, c.want)
			})
		})
	}
}

// TestSetWhoseNetsAreDropped has a server whose schema lacks a field.
func TestSetWhoseNetsAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		admit(r.sets, func(_ string, set *unstructured.Unstructured) *metav1.Status {
			unstructured.RemoveNestedField(set.Object, "spec", "nets")
			return nil
		})
		r.put(t, "1", "a", "10.4.0.1")
		elapse(keep.LongestWait / 2)
		if all := writes(r.sets); len(all) != 1 {
			t.Errorf("writes %q, want one", all)
		}
		if o := r.Status().Remotes[0].Overridden; len(o) != 1 {
			t.Errorf("%+v", o)
		}
	})
}

// TestFailedDeletionsAreRepeated makes an admission policy refuse all patches of a set, and the
// first deletion of the set fail.
func TestFailedDeletionsAreRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "1", "a", "10.4.0.1")
		r.put(t, "2", "a", "10.4.0.2")
		elapse(time.Second)
		failed := false
		r.sets.Hook(func(h *kubetest.Hooks) {
			h.Fail = func(q kubetest.Request) *metav1.Status {
				switch {
				case q.Verb == kubetest.Patch:
					return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
				case q.Verb == "delete" && !failed:
					failed = true
					return kubetest.Failure(http.StatusInternalServerError, metav1.StatusReasonInternalError)
				}
				return nil
			}
		})
		r.drop("1")
		elapse(2 * lastRetry)
		if !failed {
			t.Error("nothing was deleted")
		}
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32"})
	})
}

// TestFailuresOfAnEarlierRemovalDontCount makes one patch fail, and an hour later another one: the
// set is not deleted.
func TestFailuresOfAnEarlierRemovalDontCount(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "1", "a", "10.4.0.1")
		r.put(t, "2", "a", "10.4.0.2")
		elapse(time.Second)
		fail := func() {
			failed := false
			r.sets.Hook(func(h *kubetest.Hooks) {
				h.Fail = func(q kubetest.Request) *metav1.Status {
					if q.Verb == "delete" {
						t.Error("the set is deleted")
					}
					if q.Verb != kubetest.Patch || failed {
						return nil
					}
					failed = true
					return kubetest.Failure(http.StatusInternalServerError, metav1.StatusReasonInternalError)
				}
			})
		}
		fail()
		r.drop("1")
		elapse(50 * time.Millisecond)
		r.put(t, "1", "a", "10.4.0.1")
		elapse(time.Hour)
		fail()
		r.drop("1")
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32"})
	})
}
