package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func TestSetsFollowPods(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "1", "a", "10.4.0.1")
		r.put(t, "2", "b", "10.4.0.2")
		elapse(passSpacing)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32", "gcp-ns-b": "10.4.0.2/32"})
		elapse(time.Second)
		r.put(t, "3", "a", "10.4.0.3")
		r.drop("2")
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32 10.4.0.3/32"})
		if n := len(requests(r.sets)); n != 4 {
			t.Errorf("requests %v, want four", requests(r.sets))
		}
		r.stop()
		// A controller that starts with nothing to do writes nothing.
		again := startRig(t, r.sets, func(cfg *Config) { cfg.Remotes[0].Client = r.Remotes[0].Client })
		elapse(time.Hour)
		if n := len(requests(again.sets)); n != 4 || again.Ready() != nil || again.Health() != nil {
			t.Errorf("requests %v, ready %v, health %v", requests(again.sets), again.Ready(), again.Health())
		}
	})
}

func TestWriterMakesOneWriteOfManyQuickChanges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		for i := range 100 {
			r.put(t, "p", "a", fmt.Sprintf("10.4.0.%d", i+1))
			elapse(time.Millisecond)
		}
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.100/32"})
		if n := len(requests(r.sets)); n < 4 || n > 6 {
			t.Errorf("%d requests for 100 changes in 100 ms, want about one each %v", n, writeSpacing)
		}
	})
}

func TestWriterDoesNotLetFailuresHoldUpOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		var broken atomic.Bool
		broken.Store(true)
		refuse(sets, func(_, name string) bool { return broken.Load() && strings.HasPrefix(name, "gcp-ns-bad") })
		r := startRig(t, sets, nil)
		const count = 24
		want := map[string]string{}
		for i := range count {
			r.put(t, fmt.Sprint("bad-", i), fmt.Sprint("bad-", i), "10.4.0.1")
			r.put(t, fmt.Sprint("good-", i), fmt.Sprint("good-", i), "10.4.0.2")
			want[fmt.Sprint("gcp-ns-good-", i)] = "10.4.0.2/32"
		}
		r.putOf(t, "merit", "p", "app", "10.6.0.1")
		want["merit-ns-app"] = "10.6.0.1/32"
		elapse(50 * time.Millisecond)
		r.wantSets(t, want)
		if status := r.Status().Remotes; len(status[0].Failing) != count || status[0].Pending != count || len(status[1].Failing) > 0 {
			t.Errorf("%d fail, %d wait; of merit %d fail", len(status[0].Failing), status[0].Pending, len(status[1].Failing))
		}
		// More changes don't shorten the back-off.
		for i := range 600 {
			r.put(t, "bad-0", "bad-0", fmt.Sprintf("10.4.1.%d", i%250))
			elapse(100 * time.Millisecond)
		}
		attempts := slices.DeleteFunc(requests(sets), func(request string) bool { return request != "create gcp-ns-bad-0" })
		if n := len(attempts); n < 5 || n > 12 {
			t.Errorf("%d attempts in a minute, want a few", n)
		}
		if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d errors logged, want one:\n%s", n, r.log)
		}
		broken.Store(false)
		elapse(2 * lastRetry)
		if status := r.Status().Remotes[0]; len(content(sets)) != 2*count+1 || len(status.Failing) > 0 || status.Pending > 0 {
			t.Errorf("%d sets, failures %v, %d to write", len(content(sets)), status.Failing, status.Pending)
		}
	})
}

// TestWithdrawnWriteIsNotRepeated deletes a pod while writes of its set are refused.
func TestWithdrawnWriteIsNotRepeated(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		refuse(sets, func(string, string) bool { return true })
		r := startRig(t, sets, nil)
		r.put(t, "p", "a", "10.4.0.1")
		synctest.Wait()
		r.drop("p")
		elapse(time.Minute)
		if seen := requests(sets); len(seen) != 1 {
			t.Errorf("requests %v, want the first alone", seen)
		}
	})
}

func TestWriterNoticesWritesOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		meddle func(t *testing.T, sets *kubetest.API)
		want   map[string]string
	}{
		"edited before our patch": {
			func(t *testing.T, sets *kubetest.API) {
				putSet(t, sets, networkSetNamed("a", labelsOf("a"), "0.0.0.0/0"))
			},
			map[string]string{"gcp-ns-a": "10.4.0.2/32"},
		},
		"deleted before our patch": {
			func(_ *testing.T, sets *kubetest.API) { removeSet(sets, "gcp-ns-a") },
			map[string]string{"gcp-ns-a": "10.4.0.2/32"},
		},
		"taken before our patch": {
			func(t *testing.T, sets *kubetest.API) { putSet(t, sets, networkSetNamed("a", nil, "192.0.2.0/24")) },
			map[string]string{"gcp-ns-a": "192.0.2.0/24", gcp("a").candidate(1, 1): "10.4.0.2/32"},
		},
	} {
		for _, mute := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", the watch lags: ", mute), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := startRig(t, kubetest.NewAPI(), nil)
					r.put(t, "p", "a", "10.4.0.1")
					elapse(time.Second)
					var once sync.Once
					r.sets.Hook(func(h *kubetest.Hooks) {
						h.Mute = mute
						h.Before = func(request kubetest.Request) {
							if request.Verb == verbPatch {
								once.Do(func() { test.meddle(t, r.sets) })
							}
						}
					})
					r.put(t, "p", "a", "10.4.0.2")
					elapse(time.Second)
					r.wantSets(t, test.want)
					if failing := r.Status().Remotes[0].Failing; len(failing) > 0 {
						t.Errorf("failures %v, want none", failing)
					}
				})
			})
		}
	}
}

func TestWriterNeverTouchesWhatTurnedForeign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "p", "a", "10.4.0.1")
		elapse(time.Second)
		// No watch shows that another client takes the object over.
		r.sets.Hook(func(h *kubetest.Hooks) { h.Mute = true })
		putSet(t, r.sets, networkSetNamed("a", nil, "10.4.0.1/32"))
		r.drop("p")
		elapse(time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32"})
	})
}

func TestWriterWithAWatchThatLagsWritesOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		sets.Hook(func(h *kubetest.Hooks) { h.Mute = true })
		r := startRig(t, sets, nil)
		r.put(t, "p", "a", "10.4.0.1")
		for range 100 {
			r.everything()
			elapse(10 * time.Millisecond)
		}
		if diff := cmp.Diff([]string{"create gcp-ns-a"}, requests(sets)); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

// TestAddressIsRemovedWhileTheWatchLags writes an object several times, of which the watch
// shows nothing.
func TestAddressIsRemovedWhileTheWatchLags(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "p", "a", "10.4.0.1")
		elapse(time.Second)
		r.sets.Hook(func(h *kubetest.Hooks) { h.Mute = true })
		before := len(requests(r.sets))
		r.put(t, "q", "a", "10.4.0.2")
		elapse(100 * time.Millisecond)
		r.drop("p")
		elapse(100 * time.Millisecond)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32"})
		if diff := cmp.Diff([]string{"patch gcp-ns-a", "patch gcp-ns-a"}, requests(r.sets)[before:]); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

// TestDriftIsRepaired changes sets in all ways, as another client does: a while after they were
// written, and before that was answered.
func TestDriftIsRepaired(t *testing.T) {
	const name = "gcp-ns-a"
	edited := func(change func(*calico.GlobalNetworkSet)) func(*testing.T, *kubetest.API) {
		return func(t *testing.T, sets *kubetest.API) {
			t.Helper()
			edit(t, sets, name, change)
		}
	}
	for drift, meddle := range map[string]func(*testing.T, *kubetest.API){
		"a net added":     edited(func(s *calico.GlobalNetworkSet) { s.Spec.Nets = append(s.Spec.Nets, "0.0.0.0/0") }),
		"no nets":         edited(func(s *calico.GlobalNetworkSet) { s.Spec.Nets = nil }),
		"a label changed": edited(func(s *calico.GlobalNetworkSet) { s.Labels[domain().Domain+"/name"] = "other" }),
		"a label removed": edited(func(s *calico.GlobalNetworkSet) { delete(s.Labels, domain().Domain+"/namespace") }),
		"deleted":         func(_ *testing.T, sets *kubetest.API) { removeSet(sets, name) },
	} {
		check := func(t *testing.T, r *rig) {
			t.Helper()
			r.wantSets(t, map[string]string{name: "10.4.0.1/32"})
			var set calico.GlobalNetworkSet
			if exists := r.sets.Get(kube.NetworkSets, "", name, &set); exists && !maps.Equal(set.Labels, labelsOf("a")) || slices.Contains(requests(r.sets), "delete "+name) {
				t.Errorf("set %v, requests %v", set, requests(r.sets))
			}
		}
		t.Run(drift, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := startRig(t, kubetest.NewAPI(), nil)
				r.put(t, "p", "a", "10.4.0.1")
				elapse(time.Second)
				meddle(t, r.sets)
				elapse(time.Second)
				check(t, r)
			})
		})
		for _, verb := range []string{verbCreate, verbPatch} {
			t.Run(drift+" before the answer to its "+verb, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					r := startRig(t, kubetest.NewAPI(), nil)
					if verb == verbPatch {
						r.put(t, "p", "a", "10.4.0.9")
						elapse(time.Second)
					}
					var once sync.Once
					r.sets.Hook(func(h *kubetest.Hooks) {
						h.Answer = func(kubetest.Request) { once.Do(func() { meddle(t, r.sets) }) }
					})
					r.put(t, "p", "a", "10.4.0.1")
					// A watch doesn't show at which version an object was deleted.
					elapse(time.Second + keep.DefaultExpiry)
					check(t, r)
				})
			})
		}
	}
}

// TestReusedAddressLeavesItsOldSetAtOnce gives a pod the address of a pod of another set. That set
// must not hold it for the new pod, also while the new pod's set can't be written.
func TestReusedAddressLeavesItsOldSetAtOnce(t *testing.T) {
	for _, order := range []string{"the old pod goes first", "the new pod comes first"} {
		t.Run(order, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				sets := kubetest.NewAPI()
				refuse(sets, func(verb, name string) bool { return name == "gcp-ns-b" && verb == verbCreate })
				r := startRig(t, sets, nil)
				r.put(t, "old", "a", "10.4.0.1")
				r.put(t, "other", "a", "10.4.0.9")
				elapse(time.Second)
				if order == "the old pod goes first" {
					r.drop("old")
					r.put(t, "new", "b", "10.4.0.1")
				} else {
					r.put(t, "new", "b", "10.4.0.1")
					r.drop("old")
				}
				elapse(100 * time.Millisecond)
				r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.9/32"})
			})
		})
	}
}

// TestAPodThatIsNoLongerOfASetLeavesItAtOnce gives a pod another label, ends it, and takes its
// address away, while the set that it is added to can't be written.
func TestAPodThatIsNoLongerOfASetLeavesItAtOnce(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *rig){
		"another label": func(t *testing.T, r *rig) { r.put(t, "p", "b", "10.4.0.1") },
		"no label": func(t *testing.T, r *rig) {
			pod := podObject("ns", "p", "", corev1.PodRunning, "10.4.0.1")
			pod.Labels = nil
			r.pods["gcp"].Put(t, "pods", pod)
		},
		"deleted": func(_ *testing.T, r *rig) { r.drop("p") },
		"succeeded": func(t *testing.T, r *rig) {
			r.pods["gcp"].Put(t, "pods", podObject("ns", "p", "a", corev1.PodSucceeded, "10.4.0.1"))
		},
		"failed": func(t *testing.T, r *rig) {
			r.pods["gcp"].Put(t, "pods", podObject("ns", "p", "a", corev1.PodFailed, "10.4.0.1"))
		},
		"no address":    func(t *testing.T, r *rig) { r.put(t, "p", "a") },
		"a bad address": func(t *testing.T, r *rig) { r.put(t, "p", "a", "127.0.0.1") },
		"on the host network": func(t *testing.T, r *rig) {
			pod := podObject("ns", "p", "a", corev1.PodRunning, "10.4.0.1")
			pod.Spec.HostNetwork = true
			r.pods["gcp"].Put(t, "pods", pod)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				sets := kubetest.NewAPI()
				refuse(sets, func(_, name string) bool { return name == "gcp-ns-b" })
				r := startRig(t, sets, nil)
				r.put(t, "p", "a", "10.4.0.1")
				r.put(t, "other", "a", "10.4.0.9")
				elapse(time.Second)
				change(t, r)
				elapse(writeSpacing)
				r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.9/32"})
			})
		})
	}
}

// TestAddressesThatMustGoLeaveBeforeOthersMove shrinks a set of two objects, so that addresses of
// the second one move to the first one, which can't be written.
func TestAddressesThatMustGoLeaveBeforeOthersMove(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		r := startRig(t, sets, func(cfg *Config) { cfg.ShardSize = 4 })
		for n := range 6 {
			r.put(t, fmt.Sprint(n), "a", fmt.Sprintf("10.4.0.%d", n+1))
			elapse(100 * time.Millisecond)
		}
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32 10.4.0.2/32 10.4.0.3/32 10.4.0.4/32", "gcp-ns-a-2": "10.4.0.5/32 10.4.0.6/32"})
		admit(sets, func(_ string, set *unstructured.Unstructured) *metav1.Status {
			if nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets"); set.GetName() == "gcp-ns-a" && slices.Contains(nets, "10.4.0.5/32") {
				return kubetest.Failure(http.StatusForbidden, metav1.StatusReasonForbidden)
			}
			return nil
		})
		for _, n := range []string{"1", "2", "3", "5"} {
			r.drop(n)
		}
		elapse(100 * time.Millisecond)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32", "gcp-ns-a-2": "10.4.0.5/32"})
		admit(sets, nil)
		elapse(2 * lastRetry)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32 10.4.0.5/32"})
	})
}

// TestTwoSetsWithOneName creates two sets of the same natural name at a time.
func TestTwoSetsWithOneName(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		one, two := podObject("n", "p", "s-a", corev1.PodRunning, "10.4.0.1"), podObject("n-s", "p", "a", corev1.PodRunning, "10.4.0.2")
		r.pods["gcp"].Put(t, "pods", one)
		r.pods["gcp"].Put(t, "pods", two)
		elapse(time.Second)
		got := slices.Collect(maps.Values(content(r.sets)))
		if slices.Sort(got); !slices.Equal(got, []string{"10.4.0.1/32", "10.4.0.2/32"}) || content(r.sets)["gcp-n-s-a"] == "" {
			t.Errorf("sets %v", content(r.sets))
		}
		if failing := r.Status().Remotes[0].Failing; len(failing) > 0 {
			t.Errorf("failing %v", failing)
		}
		before := len(writes(r.sets))
		r.everything()
		elapse(time.Hour)
		if n := len(writes(r.sets)); n != before {
			t.Errorf("%d writes for nothing", n-before)
		}
	})
}

// TestWriteOfOneRemoteDoesntWaitForAnother holds the lock of another remote, which every
// computation for that remote takes.
func TestWriteOfOneRemoteDoesntWaitForAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.putOf(t, "merit", "p", "app", "10.6.0.1")
		elapse(time.Second)
		merit := r.remotes["merit"]
		merit.mu.Lock()
		r.put(t, "p", "a", "10.4.0.1")
		time.Sleep(time.Second)
		r.put(t, "q", "a", "10.4.0.2")
		time.Sleep(time.Second)
		got := content(r.sets)["gcp-ns-a"]
		merit.mu.Unlock()
		if got != "10.4.0.1/32 10.4.0.2/32" {
			t.Errorf("gcp's set holds %q", got)
		}
	})
}

// TestReadyDoesNotWaitForRemotes starts with a remote that can't be reached and has no sets. Sets
// of the other remote are written, and the status has the error.
func TestReadyDoesNotWaitForRemotes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), func(cfg *Config) {
			cfg.Remotes[1].Client = func() (kube.Client, error) { return nil, errors.New("no route") }
		})
		r.put(t, "p", "a", "10.4.0.1")
		elapse(time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32"})
		if err := r.Ready(); err != nil {
			t.Errorf("not ready: %v", err)
		}
		if api := r.Status().Remotes[1].API; api.Synced || !strings.Contains(api.Error, "no route") {
			t.Errorf("status %+v", api)
		}
	})
}

// TestStaleSetsRecoverWithAList makes a remote stale. An event of an open watch doesn't end that.
func TestStaleSetsRecoverWithAList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var down atomic.Bool
		r := startRig(t, kubetest.NewAPI(), func(cfg *Config) {
			cfg.Remotes[0].StaleAfter = 30 * time.Second
			client, err := cfg.Remotes[0].Client()
			if err != nil {
				t.Fatal(err)
			}
			cfg.Remotes[0].Client = func() (kube.Client, error) {
				if down.Load() {
					return nil, errors.New("no route")
				}
				return client, nil
			}
		})
		r.put(t, "p", "a", "10.4.0.1")
		r.putOf(t, "merit", "p", "app", "10.6.0.1")
		elapse(time.Second)
		down.Store(true)
		elapse(3 * time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "", "merit-ns-app": "10.6.0.1/32"})
		if !r.Status().Remotes[0].Stale || r.Status().Remotes[1].Stale {
			t.Error("the status doesn't say which remote is stale")
		}
		r.put(t, "q", "a", "10.4.0.2") // which the open watch shows
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": "", "merit-ns-app": "10.6.0.1/32"})
		down.Store(false)
		elapse(time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32 10.4.0.2/32", "merit-ns-app": "10.6.0.1/32"})
	})
}

// TestNarrowedSubnetsHoldWhileARemoteIsUnreachable starts with sets of an earlier run, whose pod
// subnets were wider, while the remote's API server doesn't answer.
func TestNarrowedSubnetsHoldWhileARemoteIsUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		putSet(t, sets, networkSetNamed("a", labelsOf("a"), "10.4.0.1/32", "10.9.0.1/32"))
		putSet(t, sets, networkSetNamed("b", labelsOf("b"), "10.4.0.2/32", "10.4.1.0/24"))
		putSet(t, sets, networkSetNamed("c", labelsOf("c"), "10.9.0.3/32"))
		putSet(t, sets, networkSetNamed("d", labelsOf("d"), "10.4.0.4/32"))
		var pods *kubetest.API
		r := startRig(t, sets, func(cfg *Config) {
			pods = kubetest.NewAPI()
			pods.Stop()
			client, err := kube.NewClient(pods.Config())
			if err != nil {
				t.Fatal(err)
			}
			cfg.Remotes[0].Client = func() (kube.Client, error) { return client, nil }
			cfg.Remotes[0].Rules.Subnets = []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}
		})
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32", "gcp-ns-b": "10.4.0.2/32", "gcp-ns-c": "", "gcp-ns-d": "10.4.0.4/32"})
		if n := len(writes(sets)); n != 3 {
			t.Errorf("%d writes, want 3: %v", n, writes(sets))
		}
		pods.Put(t, "pods", podObject("ns", "p", "a", corev1.PodRunning, "10.4.0.1"))
		pods.Start()
		elapse(time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32"})
	})
}

func TestSetsOfAClusterThatIsNotConfiguredAreRemovedAfterAGrace(t *testing.T) {
	stray := func(name, cluster string) *calico.GlobalNetworkSet {
		s := networkSetNamed(name, labelsOf(name), "10.9.0.1/32")
		s.Name, s.Labels[domain().Domain+"/cluster"] = cluster+"-ns-"+name, cluster
		return s
	}
	for name, c := range map[string]struct {
		keep bool
		want []string
	}{
		"by default":               {false, []string{"-ns-nowhere", "foreign", "gcp-ns-a"}},
		"kept for another process": {true, []string{"-ns-nowhere", "foreign", "gcp-ns-a", "old-ns-a", "old-ns-b", "older-ns-a"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				sets := kubetest.NewAPI()
				putSet(t, sets, stray("a", "old"))
				putSet(t, sets, stray("b", "old"))
				putSet(t, sets, stray("a", "older"))
				putSet(t, sets, stray("nowhere", ""))
				theirs := stray("a", "old")
				theirs.Name, theirs.Labels = "foreign", map[string]string{domain().Domain + "/cluster": "old"}
				putSet(t, sets, theirs)
				r := startRig(t, sets, func(cfg *Config) { cfg.KeepStrays = c.keep })
				r.put(t, "p", "a", "10.4.0.1")
				elapse(8 * time.Minute)
				if n := len(content(sets)); n != 6 {
					t.Errorf("%d sets before the grace is over, want all of them", n)
				}
				status := r.Status()
				if diff := cmp.Diff(map[string]int{"old": 2, "older": 1, "": 1}, status.Unconfigured); diff != "" {
					t.Errorf("unconfigured (-want +got):\n%s", diff)
				}
				edited := stray("a", "older") // which doesn't delay its removal
				edited.Spec.Nets = []string{"10.9.0.2/32"}
				putSet(t, sets, edited)
				if at, goes := status.RemovedAt["old"]; goes == c.keep || goes && time.Until(at) > 2*time.Minute {
					t.Errorf("the status has their removal in %v (%v)", time.Until(at), goes)
				}
				elapse(3 * time.Minute)
				if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(content(sets)))); diff != "" {
					t.Errorf("sets (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestSetsOfADepartedClusterAreRemovedAtOnce starts with sets of clusters that left in order:
// one is no longer configured, the other one still is.
func TestSetsOfADepartedClusterAreRemovedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets := kubetest.NewAPI()
		for _, cluster := range []string{"old", "older", "merit"} {
			s := networkSetNamed("a", labelsOf("a"), "10.9.0.1/32")
			s.Name, s.Labels[domain().Domain+"/cluster"] = cluster+"-ns-a", cluster
			putSet(t, sets, s)
		}
		r := startRig(t, sets, func(cfg *Config) { cfg.Departed = []string{"old", "merit"} })
		r.putOf(t, "merit", "p", "a", "10.6.0.1")
		elapse(time.Second)
		r.wantSets(t, map[string]string{"older-ns-a": "10.9.0.1/32", "merit-ns-a": "10.6.0.1/32"})
	})
}

// TestLocalServerFromABackup restores network sets from a backup: versions go back, and no watch
// shows that.
func TestLocalServerFromABackup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "1", "a", "10.4.0.1")
		elapse(time.Second)
		backup := r.sets.Save()
		r.put(t, "2", "b", "10.4.0.2")
		for n := range 50 {
			r.put(t, "1", "a", fmt.Sprintf("10.4.0.%d", 10+n))
			elapse(100 * time.Millisecond)
		}
		want := map[string]string{"gcp-ns-a": "10.4.0.59/32", "gcp-ns-b": "10.4.0.2/32"}
		r.wantSets(t, want)
		// Lost changes are written again before the watch is open.
		r.sets.Hook(func(h *kubetest.Hooks) { h.Opening = 100 * time.Millisecond })
		r.sets.Restore(backup)
		elapse(time.Minute)
		r.wantSets(t, want)
		r.put(t, "2", "a", "10.4.0.2")
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.2/32 10.4.0.59/32"})
	})
}

// TestRemoteServerFromABackup restores pods from a backup. Sets stay until all pods have been
// read.
func TestRemoteServerFromABackup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		gcp := r.pods["gcp"]
		r.put(t, "1", "a", "10.4.0.1")
		r.put(t, "3", "c", "10.4.0.3")
		backup := gcp.Save()
		r.put(t, "1", "a", "10.4.0.5")
		r.put(t, "2", "b", "10.4.0.2")
		r.drop("3")
		r.putOf(t, "merit", "p", "app", "10.6.0.1")
		elapse(time.Second)
		want := map[string]string{"gcp-ns-a": "10.4.0.5/32", "gcp-ns-b": "10.4.0.2/32", "merit-ns-app": "10.6.0.1/32"}
		r.wantSets(t, want)
		gcp.Stop()
		gcp.Restore(backup)
		elapse(time.Minute)
		r.wantSets(t, want)
		gcp.Start()
		elapse(2 * time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32", "gcp-ns-c": "10.4.0.3/32", "merit-ns-app": "10.6.0.1/32"})
		r.put(t, "1", "c", "10.4.0.1")
		elapse(time.Second)
		r.wantSets(t, map[string]string{"gcp-ns-c": "10.4.0.1/32 10.4.0.3/32", "merit-ns-app": "10.6.0.1/32"})
	})
}

// TestFinalizerKeepsNoAddress deletes a set that has a finalizer: what still exists has no nets, and
// costs no further requests.
func TestFinalizerKeepsNoAddress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), nil)
		r.put(t, "1", "a", "10.4.0.1")
		elapse(time.Second)
		edit(t, r.sets, "gcp-ns-a", func(s *calico.GlobalNetworkSet) { s.Finalizers = []string{"example.org/slow"} })
		r.drop("1")
		elapse(time.Second)
		var set calico.GlobalNetworkSet
		if r.sets.Get(kube.NetworkSets, "", "gcp-ns-a", &set); set.DeletionTimestamp == nil {
			t.Fatalf("not being deleted: %v", set)
		}
		r.wantSets(t, map[string]string{"gcp-ns-a": ""})
		before := len(requests(r.sets))
		elapse(time.Minute)
		if n := len(requests(r.sets)) - before; n > 0 {
			t.Errorf("%d requests for a set that a finalizer keeps", n)
		}
	})
}

func TestStrayThatIsBeingDeletedIsEmptied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		sets, now := kubetest.NewAPI(), metav1.Now()
		leaving := networkSetNamed("a", labelsOf("a"), "10.9.0.1/32")
		leaving.Labels[domain().Domain+"/cluster"], leaving.DeletionTimestamp = "old", &now
		putSet(t, sets, leaving)
		startRig(t, sets, nil)
		elapse(time.Hour)
		if seen := requests(sets); len(seen) != 1 || content(sets)["gcp-ns-a"] != "" {
			t.Errorf("requests %v for a set that a finalizer keeps, which has %q", seen, content(sets)["gcp-ns-a"])
		}
	})
}

// TestRoomIsFreeOnceItsSetIsGone has a set that can't be deleted, which becomes empty, and one that
// waits for its room.
func TestRoomIsFreeOnceItsSetIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := startRig(t, kubetest.NewAPI(), func(cfg *Config) { cfg.Remotes[0].Rules.MaxSets = 3 })
		for _, name := range []string{"a", "b", "c"} {
			r.put(t, name, name, "10.4.0.1")
			elapse(time.Second)
		}
		r.wantSets(t, map[string]string{"gcp-ns-a": "10.4.0.1/32", "gcp-ns-b": "10.4.0.1/32"})
		refuse(r.sets, func(verb, _ string) bool { return verb == verbDelete })
		r.drop("a")
		elapse(writeSpacing)
		r.wantSets(t, map[string]string{"gcp-ns-a": "", "gcp-ns-b": "10.4.0.1/32"})
		elapse(time.Minute)
		r.wantSets(t, map[string]string{"gcp-ns-a": "", "gcp-ns-b": "10.4.0.1/32"})
		refuse(r.sets, func(string, string) bool { return false })
		elapse(2 * lastRetry)
		r.wantSets(t, map[string]string{"gcp-ns-b": "10.4.0.1/32", "gcp-ns-c": "10.4.0.1/32"})
	})
}

// TestWritesAreBoundedInBytes has a remote that changes a large set all the time, and a small one
// beside it in another namespace.
func TestWritesAreBoundedInBytes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const number, seconds, changes = 100, 20, 40 // a second
		limit := pace.Limit{Rate: 20 << 10, Burst: 100 << 10}
		r := startRig(t, kubetest.NewAPI(), func(cfg *Config) { cfg.Pace = limit })
		put := func(n, ip int) {
			r.put(t, fmt.Sprint("p-", n), "large", netip.AddrFrom4([4]byte{10, 4, byte(ip >> 8), byte(ip)}).String())
		}
		for n := range number {
			put(n, n)
		}
		elapse(time.Minute)
		var bytes, small int
		admit(r.sets, func(_ string, set *unstructured.Unstructured) *metav1.Status {
			nets, _, _ := unstructured.NestedStringSlice(set.Object, "spec", "nets")
			if bytes += 500 + 18*len(nets); set.GetName() == "gcp-small-small" {
				small++
			}
			return nil
		})
		for n := range seconds * changes {
			put(n%number, number+n)
			if n%changes == 0 {
				r.pods["gcp"].Put(t, "pods", podObject("small", "p", "small", corev1.PodRunning, fmt.Sprintf("10.9.0.%d", 1+n/changes)))
			}
			elapse(time.Second / changes)
		}
		most := limit.Burst + seconds*limit.Rate
		if bytes > most*11/10 || bytes < most*9/10 {
			t.Errorf("%d bytes in %d s, want about %d", bytes, seconds, most)
		}
		if small != seconds {
			t.Errorf("%d writes of the small set for %d changes", small, seconds)
		}
	})
}
