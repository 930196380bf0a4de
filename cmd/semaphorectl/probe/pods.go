package join

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// probes is the namespace of temporary pods: there before ours is, and open to the
// host's network in most clusters.
const probes = "kube-system"

// temporary is a label of such pods.
const temporary = "semaphore.uw.io/temporary"

// mostProbed is how many nodes of a cluster are asked.
const mostProbed = 10

// probeLimit is how long a pod may take, with its image.
const probeLimit = 90 * time.Second

// probePod is a pod that answers a request, on a node, or anywhere.
func probePod(image, node string, request reach.Request) *corev1.Pod {
	argument, err := json.Marshal(request)
	if err != nil {
		panic(err) // Of strings and numbers.
	}
	no, root, seconds := false, int64(0), int64(300)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "semaphorectl-",
			Labels:       map[string]string{manifests.ManagedLabel: manifests.Manager, temporary: "true"},
		},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: node != "", RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			// Whatever becomes of us, it doesn't stay for long.
			ActiveDeadlineSeconds: &seconds, TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{
				Name: "reach", Image: image, Command: []string{"/bin/semaphore-wireguard", "reach", string(argument)},
				SecurityContext: &corev1.SecurityContext{
					RunAsUser: &root, AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: new(bool),
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
	if request.Kernel {
		pod.Spec.Containers[0].SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
	}
	if node != "" {
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	if request.MeetFor > 0 {
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: reach.ReadyPath, Port: intstr.FromInt32(reach.MeetPort)}},
			PeriodSeconds:    1,
			FailureThreshold: 1,
		}
	}
	return pod
}

// sweep deletes temporary pods, also those that an earlier run left.
func sweep(ctx context.Context, clusters []*cli.Cluster) error {
	// Also when our time is over, or the user has had enough.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	errs := make([]error, len(clusters))
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() {
			err := c.Client.CoreV1().Pods(probes).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
				metav1.ListOptions{LabelSelector: temporary + "=true," + manifests.ManagedLabel + "=" + manifests.Manager})
			if err != nil {
				errs[i] = fmt.Errorf("%s: delete temporary pods in %s: %w", c.Name, probes, err)
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// answers are those of a cluster's nodes, by node.
type answers map[string]reach.Result

// ask has the nodes of a cluster asked. Faults are about those that don't answer.
func ask(ctx context.Context, c *cli.Cluster, f *facts.Facts, image string, request reach.Request) (answers, []fault) {
	found := answers{}
	var faults []fault
	var mu sync.Mutex
	var group sync.WaitGroup
	asked := 0
	for _, n := range f.Nodes {
		if !n.Ready || n.OS != "" && n.OS != "linux" || asked == mostProbed {
			continue
		}
		asked++
		group.Go(func() {
			result, err := askOne(ctx, c, probePod(image, n.Name, request))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				faults = append(faults, fault{cluster: c.Name, what: "a pod on node " + n.Name + " finds nothing out: " + err.Error(),
					remedy: "see that nodes can pull the image " + image + ", or say --image; --no-probe leaves this out"})
				return
			}
			found[n.Name] = *result
		})
	}
	group.Wait()
	return found, faults
}

func askOne(ctx context.Context, c *cli.Cluster, pod *corev1.Pod) (*reach.Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, errors.New("not within "+probeLimit.String()))
	defer cancel()
	pods := c.Client.CoreV1().Pods(probes)
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	last := "not started"
	var result *reach.Result
	err = wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, errors.New("somebody has deleted it")
		}
		if err != nil || len(now.Status.ContainerStatuses) == 0 {
			if now != nil && now.Status.Phase == corev1.PodFailed {
				return false, errors.New(now.Status.Reason + " " + now.Status.Message)
			}
			return false, nil // The next time.
		}
		state := now.Status.ContainerStatuses[0].State
		if w := state.Waiting; w != nil {
			last = w.Reason + " " + w.Message
			if w.Reason == "ErrImageNeverPull" || w.Reason == "InvalidImageName" || w.Reason == "ImagePullBackOff" {
				return false, errors.New(last)
			}
		}
		if state.Terminated == nil {
			return false, nil
		}
		var r reach.Result
		if json.Unmarshal([]byte(state.Terminated.Message), &r) != nil {
			return false, fmt.Errorf("it ended with code %d: %s", state.Terminated.ExitCode, state.Terminated.Message)
		}
		result = &r
		return true, nil
	})
	if wait.Interrupted(err) {
		err = fmt.Errorf("%w: %s", context.Cause(ctx), last)
	}
	return result, err
}

// outside says which of a cluster's servers its neighbour's nodes reach: the first one
// that all of them do, "" for none, and why not.
func outside(servers []string, found answers) (server string, faults []string) {
	for _, s := range servers {
		var failed []string
		for _, node := range slices.Sorted(maps.Keys(found)) {
			if why := found[node].Servers[s]; why != "" {
				failed = append(failed, "not reached from node "+node+": "+why)
			}
		}
		if len(failed) == 0 {
			return s, nil
		}
		faults = append(faults, s+" is "+failed[0])
	}
	return "", faults
}
