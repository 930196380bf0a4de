package programs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// boundTo returns the request for the token of a pod's volume, as the kubelet makes it.
func boundTo(pod *corev1.Pod) (authenticationv1.TokenRequestSpec, error) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if token := source.ServiceAccountToken; token != nil {
				return authenticationv1.TokenRequestSpec{
					ExpirationSeconds: token.ExpirationSeconds,
					BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
				}, nil
			}
		}
	}
	return authenticationv1.TokenRequestSpec{}, errors.New("the fake kubelet mounts only tokens of projected volumes, and the pod has none")
}

// mounts returns the mounts of a container, except for that of its token.
func (p *fakePod) mounts(dir string, container *corev1.Container) []sandbox.Mount {
	var all []sandbox.Mount
	if !p.object.Spec.HostNetwork {
		// Nodes already have these.
		all = append(all, sandbox.Tmpfs("/run"), sandbox.Overlay("/etc", filepath.Join(dir, "etc-"+container.Name)))
	}
	for _, mount := range container.VolumeMounts {
		if folder := p.volumes[mount.Name]; folder != "" {
			all = append(all, sandbox.Bind(folder, mount.MountPath))
		}
	}
	return all
}

// fill updates the folders of volumes: Secrets are created and changed later.
func (p *fakePod) fill(ctx context.Context) error {
	for _, volume := range p.object.Spec.Volumes {
		folder := p.volumes[volume.Name]
		if folder == "" {
			continue
		}
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
		if volume.Secret == nil {
			continue
		}
		secret, err := p.cluster.Client().CoreV1().Secrets(Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && volume.Secret.Optional != nil && *volume.Secret.Optional {
			continue
		}
		if err != nil {
			return err
		}
		for key, value := range secret.Data {
			file := filepath.Join(folder, key)
			if have, err := os.ReadFile(file); err == nil && slices.Equal(have, value) {
				continue
			}
			if err := errors.Join(os.WriteFile(file+".new", value, 0o600), os.Rename(file+".new", file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// runs reports whether all programs run.
func (p *fakePod) runs() bool {
	return !slices.ContainsFunc(p.programs, func(program *Program) bool { return !program.process.Running() })
}

// probe runs the readiness probe.
func (p *fakePod) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	container, program := &p.object.Spec.Containers[0], p.programs[len(p.programs)-1]
	switch probe := container.ReadinessProbe; {
	case probe == nil:
		return nil
	case probe.Exec != nil:
		command := program.command(probe.Exec.Command[1:]...)
		command.Name = path.Base(probe.Exec.Command[0]) + "-probe"
		return runToEnd(ctx, p.host, command)
	case probe.HTTPGet != nil:
		port := probe.HTTPGet.Port.IntValue()
		for _, declared := range container.Ports {
			if declared.Name == probe.HTTPGet.Port.StrVal {
				port = int(declared.ContainerPort)
			}
		}
		transport := &http.Transport{DialContext: p.node.Dial, DisableKeepAlives: true}
		defer transport.CloseIdleConnections()
		url := "http://" + net.JoinHostPort(p.object.Status.PodIP, strconv.Itoa(port)) + probe.HTTPGet.Path
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return err
		}
		if err := response.Body.Close(); err != nil || response.StatusCode == http.StatusOK {
			return err
		}
		return fmt.Errorf("%s: %s", url, response.Status)
	}
	return errors.New("the fake kubelet doesn't know this kind of probe")
}

// report writes the pod's status.
func (p *fakePod) report(ctx context.Context) error {
	state := corev1.ConditionFalse
	if p.ready {
		state = corev1.ConditionTrue
	}
	p.object.Status.PodIPs = []corev1.PodIP{{IP: p.object.Status.PodIP}}
	p.object.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: state}}
	now, err := p.cluster.Client().CoreV1().Pods(Namespace).UpdateStatus(ctx, p.object, metav1.UpdateOptions{})
	if err == nil {
		p.object = now
	}
	return err
}
