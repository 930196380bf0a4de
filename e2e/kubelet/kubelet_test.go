package kubelet_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

var rollouts = flag.Int("rollouts", 4, "how often a new image is rolled out, from one cluster to the other and back")

// TestKubelet installs the product, and restarts, upgrades and breaks it as in clusters, under
// traffic.
func TestKubelet(t *testing.T) {
	l := startLab(t, "aws", "gcp")
	if !t.Run("joined by semaphorectl", l.joined) || only(t, "joined") {
		return
	}
	installed := t.Run("installed by the manifests, pods reach each other", func(t *testing.T) {
		start := time.Now()
		l.install(t, versions[0])
		l.waitReach(t)
		t.Logf("FIGURE first answers both ways %v after the installation began", time.Since(start).Round(10*time.Millisecond))
		for i := range l.clusters {
			l.waitRolledOut(t, i)
		}
		if l.hasEngine(t) {
			for i := range l.clusters {
				l.batched(t, i)
			}
		}
	})
	if !installed {
		return
	}
	capture, err := l.testbed.Capture()
	must(t, err)
	t.Run("nothing happens", func(t *testing.T) {
		nothing := func() [2]result { return l.measure(t, "nothing", func() { time.Sleep(5 * time.Second) }) }
		for range 3 {
			if held(nothing()) {
				return
			}
		}
		t.Error("packets are lost without a fault: the following figures are unreliable")
	})
	t.Run("rollouts of a new image", func(t *testing.T) {
		for n := range *rollouts {
			l.blink(t, fmt.Sprintf("rollout %d", n+1), func() { l.rollOut(t, n%2) })
		}
	})
	t.Run("the agent is killed", func(t *testing.T) {
		for n := range 3 {
			l.under(t, fmt.Sprintf("kill %d", n+1), func() { l.kill(t, 0, "agent") })
		}
	})
	t.Run("a configuration that the agent refuses", func(t *testing.T) {
		l.under(t, "crash loop, and mended", func() {
			l.crashLoop(t, 1)
			l.mend(t, 1)
		})
	})
	t.Run("its pod is deleted", func(t *testing.T) {
		for n := range 2 {
			l.printResumed(t, n, l.interrupt(t, fmt.Sprintf("pod deleted %d", n+1), func() { l.deletePod(t, n) }))
		}
	})
	if l.hasEngine(t) {
		t.Run("what serves the devices is killed", func(t *testing.T) {
			l.interrupt(t, "child of the engine killed 10 times", func() {
				for range 10 {
					l.killChild(t, 0)
				}
			})
			l.printResumed(t, 1, l.interrupt(t, "engine killed", func() { l.kill(t, 1, "engine") }))
		})
	}
	counts, err := capture.Counts(within(t, time.Minute))
	must(t, err)
	t.Logf("FIGURE on the wire: %v", counts)
	if counts.Plaintext.Packets > 0 || counts.WireGuard.Packets == 0 {
		t.Errorf("plaintext on the wire: %v\n%v", counts, capture.Plaintext())
	}
	t.Run("taken out", l.takeOut)
}

// only reports whether -run asks for parts of TestKubelet with a name alone: the others need
// what the first of them installs.
func only(t *testing.T, part string) bool {
	_, parts, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	if !strings.HasPrefix(parts, part) {
		return false
	}
	t.Logf("-run leaves out all but %q", part)
	return true
}

// rollOut applies the other version of our image to a cluster.
func (l *lab) rollOut(t *testing.T, cluster int) {
	t.Helper()
	before, after := versions[l.version[cluster]], versions[1-l.version[cluster]]
	l.version[cluster] = 1 - l.version[cluster]
	l.edit(t, cluster, "newTag: "+before, "newTag: "+after)
	l.apply(t, cluster, "")
	l.waitVersion(t, cluster, after)
	l.waitReach(t)
}

// waitVersion waits for the rollout of a version of our image.
func (l *lab) waitVersion(t *testing.T, cluster int, version string) {
	t.Helper()
	pod := l.waitRolledOut(t, cluster)
	for _, status := range pod.Status.ContainerStatuses {
		if want := imageOf(version); status.Image != want {
			t.Errorf("%s runs %s, expected %s", status.Name, status.Image, want)
		}
	}
}

// kill kills a container of the agent's pod and waits until the kubelet has started
// it again, which takes longer each time.
func (l *lab) kill(t *testing.T, cluster int, container string) {
	t.Helper()
	pod := l.waitRolledOut(t, cluster)
	before := restarts(pod, container)
	must(t, l.kubelets[cluster].Kill(t.Context(), pod.Namespace, pod.Name, container))
	must(t, testbed.Wait(within(t, 5*time.Minute), container+" to be started again", func(ctx context.Context) error {
		pod, err := l.agentPod(ctx, cluster)
		if err == nil && restarts(pod, container) == before {
			err = errors.New("not started again")
		}
		return err
	}))
	l.waitReach(t)
}

// deletePod deletes the agent's pod, which the DaemonSet recreates after its end, without
// surge.
func (l *lab) deletePod(t *testing.T, cluster int) {
	t.Helper()
	pod := l.waitRolledOut(t, cluster)
	l.kubectl(t, cluster, "-n", pod.Namespace, "delete", "pod", pod.Name)
	l.waitRolledOut(t, cluster)
	l.waitReach(t)
}

// killChild kills the process that the engine has started to serve devices.
func (l *lab) killChild(t *testing.T, cluster int) {
	t.Helper()
	pod := l.waitRolledOut(t, cluster)
	killed, err := l.kubelets[cluster].KillChildren(t.Context(), pod.Namespace, pod.Name, "engine")
	must(t, err)
	if killed != 1 {
		t.Errorf("the engine had %d children", killed)
	}
	l.waitReach(t)
	if now := l.waitRolledOut(t, cluster); restarts(now, "engine") != restarts(pod, "engine") {
		t.Error("the kubelet has started the engine again")
	}
}

// batched checks that the process that serves devices has the batch scheduling policy, with
// the manifests' seccomp profile: if a profile denies that, the engine works without.
func (l *lab) batched(t *testing.T, cluster int) {
	t.Helper()
	pod := l.waitRolledOut(t, cluster)
	pids, err := l.kubelets[cluster].Processes(t.Context(), pod.Namespace, pod.Name, "engine")
	must(t, err)
	if len(pids) != 2 {
		t.Fatalf("the engine is %d processes, expected it and its child", len(pids))
	}
	serving := fmt.Sprintf("/proc/%d", pids[1])
	status, err := l.nodes[cluster].Run(t.Context(), "cat", serving+"/status")
	must(t, err)
	if !strings.Contains(status, "\nSeccomp:\t2\n") {
		t.Errorf("no seccomp filter is in force:\n%s", status)
	}
	threads, err := l.nodes[cluster].Run(t.Context(), "sh", "-c", "cat "+serving+"/task/*/stat")
	must(t, err)
	for thread := range strings.Lines(threads) {
		// What follows the name, which may have anything in it, begins with field 3; the
		// policy is field 41 (proc_pid_stat(5)).
		fields := strings.Fields(thread[strings.LastIndexByte(thread, ')')+1:])
		if policy := fields[41-3]; policy != strconv.Itoa(unix.SCHED_BATCH) {
			t.Errorf("%s: a thread that serves devices has policy %s: %s", l.clusters[cluster].Name, policy, thread)
		}
	}
}

// printResumed prints the time from the start of a cluster's engine to the first packets.
func (l *lab) printResumed(t *testing.T, cluster int, results [2]result) {
	t.Helper()
	if !l.hasEngine(t) {
		return
	}
	started, err := l.engineStarted(cluster)
	must(t, err)
	for _, r := range results {
		t.Logf("FIGURE %s to %s: packets resumed %v after the engine of %s had started",
			r.from, r.to, r.received.Resumed.Sub(started).Round(time.Millisecond), l.clusters[cluster].Name)
	}
}

// restarts returns the restart count of a pod's container.
func restarts(pod *corev1.Pod, container string) int32 {
	for _, status := range append(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses...) {
		if status.Name == container {
			return status.RestartCount
		}
	}
	return 0
}

const listenPort = "_WG_LISTEN_PORT="

// crashLoop applies a configuration that the agent rejects, and waits for three restarts.
func (l *lab) crashLoop(t *testing.T, cluster int) {
	t.Helper()
	l.edit(t, cluster, listenPort, listenPort+"none")
	l.apply(t, cluster, "")
	must(t, testbed.Wait(within(t, 5*time.Minute), "the agent to fail", func(ctx context.Context) error {
		pods, err := l.agentPods(ctx, cluster)
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if restarts(&pod, "agent") >= 2 {
				return nil
			}
		}
		return errors.New("it hasn't yet")
	}))
}

// mend undoes crashLoop.
func (l *lab) mend(t *testing.T, cluster int) {
	t.Helper()
	l.edit(t, cluster, listenPort+"none", listenPort)
	l.apply(t, cluster, "")
	l.waitRolledOut(t, cluster)
	l.waitReach(t)
}

// takeOut uninstalls the product as documented, in both clusters at once, and checks what
// remains.
func (l *lab) takeOut(t *testing.T) {
	for i, c := range l.clusters {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			l.takeOutOf(t, i)
			must(t, programs.Clean(t.Context(), l.nodes[i]))
		})
	}
}

func (l *lab) takeOutOf(t *testing.T, cluster int) {
	t.Helper()
	l.apply(t, cluster, "-cleanup")
	must(t, testbed.Wait(within(t, 3*time.Minute), "the agent to take itself out of "+l.clusters[cluster].Name, func(ctx context.Context) error {
		node, err := l.nodes[cluster].Object(ctx)
		if err != nil {
			return err
		}
		for name := range node.Annotations {
			if strings.Contains(name, "wireguard.semaphore.uw.io") {
				return fmt.Errorf("%s is still there", name)
			}
		}
		return nil
	}))
	l.kubectl(t, cluster, "delete", "--timeout=120s", "-k", l.example(cluster, ""))
}
