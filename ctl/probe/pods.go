// Package probe runs temporary pods with our image in clusters, for checks that only pods
// and nodes can do, and deletes them.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// Namespace is the namespace of temporary pods: it exists before ours, and most clusters
// admit host networking there.
const Namespace = "kube-system"

// temporary is a label of these pods.
const temporary = "semaphore.uw.io/temporary"

// maxProbed bounds the nodes of a cluster that run pods for Ask.
const maxProbed = 10

// limit is the timeout of a pod, including the pull of its image.
const limit = 90 * time.Second

// Pod returns a pod for a request on a node, with the host's network; see OnNode.
func Pod(image, node string, request reach.Request) *corev1.Pod {
	argument, err := json.Marshal(request)
	if err != nil {
		panic(err) // A struct of strings and numbers.
	}
	no, root, seconds := false, int64(0), int64(300)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "semaphorectl-",
			Labels:       map[string]string{manifests.ManagedLabel: manifests.Manager, temporary: "true"},
		},
		Spec: corev1.PodSpec{
			NodeName: node, HostNetwork: true, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			// Should this process be killed, the pod ends by itself.
			ActiveDeadlineSeconds: &seconds, TerminationGracePeriodSeconds: new(int64),
			NodeSelector: map[string]string{corev1.LabelOSStable: "linux"},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
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
	return pod
}

// OnNode is Pod without the host's network.
func OnNode(image, node string, request reach.Request) *corev1.Pod {
	pod := Pod(image, node, request)
	pod.Spec.HostNetwork = false
	return pod
}

// Sweep deletes temporary pods and Services, including those of earlier runs.
func Sweep(ctx context.Context, clusters []*cli.Cluster) error {
	// Also after a timeout or an interruption.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepWithin)
	defer cancel()
	errs := make([]error, len(clusters))
	var group sync.WaitGroup
	for i, c := range clusters {
		group.Go(func() {
			err := c.Client.CoreV1().Pods(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)},
				metav1.ListOptions{LabelSelector: temporary + "=true," + manifests.ManagedLabel + "=" + manifests.Manager})
			if err != nil {
				errs[i] = fmt.Errorf("%s: delete temporary pods in %s: %w", c.Name, Namespace, err)
			}
			errs[i] = errors.Join(errs[i], sweepServices(ctx, c))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// Answers are the results of pods on a cluster's nodes, by node.
type Answers map[string]reach.Result

// Pick returns the names of nodes that can run pods, at most so many.
func Pick(nodes []inspect.Node, most int) []string {
	var picked []string
	for _, n := range nodes {
		if n.Ready == "True" && n.Agentless() == "" && len(picked) < most {
			picked = append(picked, n.Name)
		}
	}
	return picked
}

// Ask runs a request in pods on nodes of a cluster. It returns results and errors by node.
func Ask(ctx context.Context, c *cli.Cluster, nodes []inspect.Node, image string, request reach.Request) (Answers, map[string]error) {
	found, failed := Answers{}, map[string]error{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, node := range Pick(nodes, maxProbed) {
		group.Go(func() {
			result, err := askOne(ctx, c, Pod(image, node, request), &request)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[node] = err
				return
			}
			found[node] = *result
		})
	}
	group.Wait()
	return found, failed
}

// askOne runs a pod, and returns its result; it is an error if that lacks part of the request.
func askOne(ctx context.Context, c *cli.Cluster, pod *corev1.Pod, request *reach.Request) (*reach.Result, error) {
	limit := limit + time.Duration(request.Patience)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("not within "+limit.String()))
	defer cancel()
	pod, err := c.Client.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return await(ctx, c, pod, request)
}

// await waits until a pod has ended, and returns its result.
func await(ctx context.Context, c *cli.Cluster, pod *corev1.Pod, request *reach.Request) (result *reach.Result, err error) {
	_, err = follow(ctx, c, pod, func(p *corev1.Pod) (bool, error) {
		ended := terminated(p)
		if ended == nil {
			return false, nil
		}
		if result, err = resultOf(ended); err != nil {
			return false, fmt.Errorf("the temporary pod exited with code %d: %w", ended.ExitCode, err)
		}
		if len(result.Connections) != len(request.Try) {
			return false, fmt.Errorf("the image %s is too old for this test; set another one with --image", pod.Spec.Containers[0].Image)
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// follow reads a pod until it is done, and returns it as it was read last.
func follow(ctx context.Context, c *cli.Cluster, pod *corev1.Pod, done func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	name, state := pod.Name, "not started"
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, err := c.Client.CoreV1().Pods(Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, errors.New("the temporary pod was deleted")
		}
		if err != nil {
			return false, nil // Retry.
		}
		pod, state = now, string(now.Status.Phase)
		if err := unstarted(now); err != nil {
			return false, err
		}
		for _, status := range now.Status.ContainerStatuses {
			if w := status.State.Waiting; w != nil {
				state = w.Reason + " " + w.Message
				if imageless(w) {
					return false, &imageError{state}
				}
			}
		}
		return done(now)
	})
	if wait.Interrupted(err) {
		err = fmt.Errorf("%w: the temporary pod is %s", context.Cause(ctx), printable.Text(state, printable.Short))
	}
	return pod, err
}

// terminated returns how the container of a pod has ended; nil: it hasn't.
func terminated(p *corev1.Pod) *corev1.ContainerStateTerminated {
	if len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return p.Status.ContainerStatuses[0].State.Terminated
}

// unstarted returns an error for a pod that has ended before its container started: a kubelet
// admits no pods that don't fit on its node.
func unstarted(p *corev1.Pod) error {
	if p.Status.Phase != corev1.PodFailed || len(p.Status.ContainerStatuses) > 0 {
		return nil
	}
	return errors.New("the temporary pod has not started: " + printable.Text(p.Status.Reason+" "+p.Status.Message, printable.Short))
}

// maxResult bounds a result in bytes: kubelets accept termination messages of 4 KiB of a
// container, and of 12 KiB of a pod.
const maxResult = 16 << 10

// resultOf decodes a pod's result from its termination message. Anything else in the
// message is returned as an error.
func resultOf(ended *corev1.ContainerStateTerminated) (*reach.Result, error) {
	var r reach.Result
	if len(ended.Message) > maxResult || json.Unmarshal([]byte(ended.Message), &r) != nil {
		return nil, errors.New(printable.Text(ended.Message, printable.Short))
	}
	return &r, nil
}

// longest is the timeout of Wait.
const longest = 150 * time.Second

// Wait waits until a temporary pod is ready. If it ends before that, the error contains its
// termination message.
func Wait(ctx context.Context, c *cli.Cluster, pod *corev1.Pod, ready func(*corev1.Pod) bool) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, errors.New("not in time"))
	defer cancel()
	return follow(ctx, c, pod, func(p *corev1.Pod) (bool, error) {
		if ended := terminated(p); ended != nil && !ready(p) {
			return false, fmt.Errorf("the temporary pod exited with code %d: %s", ended.ExitCode, printable.Text(ended.Message, printable.Short))
		}
		return ready(p), nil
	})
}

// Running reports whether a pod runs and has addresses.
func Running(p *corev1.Pod) bool {
	return len(Addresses(p)) > 0 && p.Status.Phase == corev1.PodRunning
}

// imageError is the error of a pod whose image can't be pulled.
type imageError struct{ text string }

// Error returns what the kubelet says about it.
func (e *imageError) Error() string { return e.text }

// IsImage reports whether a pod failed because its image can't be pulled.
func IsImage(err error) bool {
	_, is := errors.AsType[*imageError](err)
	return is
}

// imageless reports whether a container can't start because of its image.
func imageless(w *corev1.ContainerStateWaiting) bool {
	return w.Reason == "ErrImageNeverPull" || w.Reason == "InvalidImageName" || w.Reason == "ImagePullBackOff"
}
