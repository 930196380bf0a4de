package scenarios_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// kubelet runs pods on a node of the testbed from their templates, with the features that our
// manifests use: environment, arguments, user and capabilities, volumes, a token that is
// bound to the pod. Unknown features fail the test. It doesn't use the image's file system.
type kubelet struct {
	node *testbed.Node
	// override replaces settings that have other values in the testbed.
	override map[string]string
}

// runningPod is a pod whose only container has been started, after its sidecars.
type runningPod struct {
	*sandbox.Process
	sidecars  []*sandbox.Process
	kubelet   *kubelet
	container *corev1.Container
	address   string // of the pod, where the kubelet probes it by default
}

// run creates a pod in the API, subject to Pod Security admission, and starts its container.
func (k *kubelet) run(t *testing.T, name string, template *corev1.PodTemplateSpec) *runningPod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Spec.NodeName = name+"-"+k.node.Name, k.node.Name
	pods := k.node.Cluster.Client().CoreV1().Pods(systemNamespace)
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() {
		// The next pod of this name is another one.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	if len(pod.Spec.Containers) != 1 {
		t.Fatalf("pod %s: expected one container", pod.Name)
	}
	running := &runningPod{
		kubelet: k, container: &pod.Spec.Containers[0],
		// Pods of the testbed run in their node's network namespace, and have its address.
		address: k.node.Addresses()[0].String(),
	}
	credentials, err := k.node.Cluster.Credentials(t.Context(), systemNamespace, pod.Spec.ServiceAccountName)
	must(t, err)
	lifetime := tokenLifetime(t, pod)
	must(t, credentials.RotateFor(t.Context(), authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &lifetime,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}))
	token, err := os.ReadFile(credentials.TokenFile())
	must(t, err)
	claims, err := tokens.Parse(strings.TrimSpace(string(token)))
	must(t, err)
	if lasts := claims.Expires.Sub(claims.Issued); lasts != time.Hour {
		t.Errorf("the token of pod %s lasts %s", pod.Name, lasts)
	}
	dirs := map[string]string{}
	for i := range pod.Spec.InitContainers {
		sidecar := &pod.Spec.InitContainers[i]
		if sidecar.RestartPolicy == nil || *sidecar.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			t.Fatalf("pod %s: %s isn't a sidecar", pod.Name, sidecar.Name)
		}
		running.sidecars = append(running.sidecars, k.start(t, name+"-"+sidecar.Name, pod, sidecar, credentials, dirs))
	}
	running.Process = k.start(t, name, pod, running.container, credentials, dirs)
	return running
}

// start starts the process of a container. dirs are the empty folders of the pod, by
// volume.
func (k *kubelet) start(t *testing.T, name string, pod *corev1.Pod, container *corev1.Container, credentials *testbed.Credentials, dirs map[string]string) *sandbox.Process {
	t.Helper()
	token, env := credentials.InCluster()
	env = append(env, k.environment(t, pod, container)...)
	command := sandbox.Command{Name: name, Env: env, Mounts: k.volumes(t, pod, container, token, dirs)}
	if len(container.Command) != 1 || path.Dir(container.Command[0]) != "/bin" {
		t.Fatalf("pod %s: the image has no %q", pod.Name, container.Command)
	}
	var err error
	command.Path, err = exec.LookPath("setpriv")
	must(t, err)
	command.Args = slices.Concat(privileges(t, pod, container), []string{"--", program(t, path.Base(container.Command[0]))}, container.Args)
	process, err := k.node.Start(command)
	must(t, err)
	return process
}

// Stop ends the pod as the kubelet does: its sidecars after everything else.
func (p *runningPod) Stop(ctx context.Context) error {
	return errors.Join(p.Process.Stop(ctx), p.stopSidecars(ctx))
}

// stopSidecars ends what is left of a pod whose container has ended.
func (p *runningPod) stopSidecars(ctx context.Context) error {
	var errs []error
	for _, sidecar := range slices.Backward(p.sidecars) {
		errs = append(errs, sidecar.Stop(ctx))
	}
	return errors.Join(errs...)
}

// environment is the environment of the container's process.
func (k *kubelet) environment(t *testing.T, pod *corev1.Pod, container *corev1.Container) []string {
	t.Helper()
	if pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks {
		t.Errorf("pod %s gets variables that look like settings, for each service", pod.Name)
	}
	env := map[string]string{}
	config := func(name string) map[string]string {
		config, err := k.node.Cluster.Client().CoreV1().ConfigMaps(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		return config.Data
	}
	for _, from := range container.EnvFrom {
		if from.ConfigMapRef == nil {
			t.Fatalf("pod %s: environment from %v", pod.Name, from)
		}
		for key, value := range config(from.ConfigMapRef.Name) {
			env[from.Prefix+key] = value
		}
	}
	fields := map[string]string{
		"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID), "spec.nodeName": pod.Spec.NodeName,
		"status.hostIP": k.node.Addresses()[0].String(),
	}
	for _, v := range container.Env {
		switch {
		case v.ValueFrom == nil:
			env[v.Name] = v.Value
		case v.ValueFrom.FieldRef != nil && fields[v.ValueFrom.FieldRef.FieldPath] != "":
			env[v.Name] = fields[v.ValueFrom.FieldRef.FieldPath]
		case v.ValueFrom.ConfigMapKeyRef != nil:
			if value, set := config(v.ValueFrom.ConfigMapKeyRef.Name)[v.ValueFrom.ConfigMapKeyRef.Key]; set {
				env[v.Name] = value
			}
		default:
			t.Fatalf("pod %s: %s from %v", pod.Name, v.Name, v.ValueFrom)
		}
	}
	for key, value := range k.override {
		if len(container.EnvFrom) == 0 {
			break // It has no settings for remotes.
		}
		if _, set := env[key]; !set {
			t.Errorf("pod %s lacks the setting %s", pod.Name, key)
		}
		env[key] = value
	}
	var list []string
	for _, key := range slices.Sorted(maps.Keys(env)) {
		list = append(list, key+"="+env[key])
	}
	return list
}

// volumes are the mounts of the container's process. The token is like the kubelet's, and
// dirs are the empty folders of its containers, by volume.
func (k *kubelet) volumes(t *testing.T, pod *corev1.Pod, container *corev1.Container, token sandbox.Mount, dirs map[string]string) []sandbox.Mount {
	t.Helper()
	var mounts []sandbox.Mount
	for _, m := range container.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Fatalf("pod %s: no volume %s", pod.Name, m.Name)
		}
		switch volume := pod.Spec.Volumes[i]; {
		case volume.HostPath != nil:
			mounts = append(mounts, sandbox.Bind(k.hostPath(t, volume.HostPath), m.MountPath))
		case volume.Secret != nil:
			mounts = append(mounts, sandbox.Bind(k.secret(t, pod, volume.Secret), m.MountPath))
		case volume.EmptyDir != nil:
			if dirs[m.Name] == "" {
				dirs[m.Name] = t.TempDir()
				must(t, os.Chmod(dirs[m.Name], 0o777)) // As the kubelet's.
			}
			mounts = append(mounts, sandbox.Bind(dirs[m.Name], m.MountPath))
		case volume.Projected != nil:
			projectsToken(t, pod, volume.Projected)
			mounts = append(mounts, sandbox.Bind(token.Source, m.MountPath))
		default:
			t.Fatalf("pod %s: volume %v", pod.Name, volume)
		}
	}
	return mounts
}

// tokenLifetime returns how many seconds the token of a pod shall last.
func tokenLifetime(t *testing.T, pod *corev1.Pod) int64 {
	t.Helper()
	if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
		t.Fatalf("pod %s mounts the default token", pod.Name)
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.ServiceAccountToken != nil {
				return *source.ServiceAccountToken.ExpirationSeconds
			}
		}
	}
	t.Fatalf("pod %s has no token", pod.Name)
	return 0
}

// projectsToken checks that a volume is like the kubelet's default one.
func projectsToken(t *testing.T, pod *corev1.Pod, volume *corev1.ProjectedVolumeSource) {
	t.Helper()
	var files []string
	for _, source := range volume.Sources {
		switch {
		case source.ServiceAccountToken != nil && source.ServiceAccountToken.Audience == "":
			files = append(files, source.ServiceAccountToken.Path)
		case source.ConfigMap != nil && source.ConfigMap.Name == "kube-root-ca.crt":
			for _, item := range source.ConfigMap.Items {
				files = append(files, item.Path)
			}
		case source.DownwardAPI != nil:
			for _, item := range source.DownwardAPI.Items {
				if item.FieldRef == nil || item.FieldRef.FieldPath != "metadata.namespace" {
					t.Errorf("pod %s: %s from %v", pod.Name, item.Path, item.FieldRef)
				}
				files = append(files, item.Path)
			}
		default:
			t.Fatalf("pod %s: projected volume from %v", pod.Name, source)
		}
	}
	if slices.Sort(files); !slices.Equal(files, []string{"ca.crt", "namespace", "token"}) {
		t.Errorf("pod %s: the projected volume has the files %q", pod.Name, files)
	}
}

func (k *kubelet) hostPath(t *testing.T, volume *corev1.HostPathVolumeSource) string {
	t.Helper()
	switch *volume.Type {
	case corev1.HostPathDirectoryOrCreate:
		_, err := k.node.Run(t.Context(), "mkdir", "-p", volume.Path)
		must(t, err)
	default:
		t.Fatalf("host path %s of type %s", volume.Path, *volume.Type)
	}
	return volume.Path
}

// secret writes the files of a Secret, with the group and the permissions of its pod.
func (k *kubelet) secret(t *testing.T, pod *corev1.Pod, volume *corev1.SecretVolumeSource) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	secret, err := k.node.Cluster.Client().CoreV1().Secrets(systemNamespace).Get(t.Context(), volume.SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && volume.Optional != nil && *volume.Optional {
		return dir
	}
	must(t, err)
	group := 0
	if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		group = int(*pod.Spec.SecurityContext.FSGroup)
	}
	for key, value := range secret.Data {
		file := filepath.Join(dir, key)
		must(t, os.WriteFile(file, value, 0o600))
		must(t, os.Chown(file, 0, group))
		must(t, os.Chmod(file, os.FileMode(*volume.DefaultMode)))
	}
	return dir
}

// privileges are the arguments of setpriv(1) for the container's security context.
func privileges(t *testing.T, pod *corev1.Pod, container *corev1.Container) []string {
	t.Helper()
	if container.SecurityContext == nil || container.SecurityContext.Capabilities == nil {
		t.Fatalf("pod %s keeps the capabilities that the runtime gives", pod.Name)
	}
	context := container.SecurityContext
	bounding := "-all"
	if !slices.Equal(context.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("pod %s drops %v, expected ALL", pod.Name, context.Capabilities.Drop)
	}
	for _, c := range context.Capabilities.Add {
		bounding += ",+" + strings.ToLower(string(c))
	}
	if context.AllowPrivilegeEscalation == nil || *context.AllowPrivilegeEscalation {
		t.Errorf("pod %s may gain privileges", pod.Name)
	}
	user := context.RunAsUser
	if user == nil && pod.Spec.SecurityContext != nil {
		user = pod.Spec.SecurityContext.RunAsUser
	}
	if user == nil {
		t.Fatalf("pod %s doesn't say its user", pod.Name)
	}
	group := *user
	id := strconv.FormatInt(*user, 10)
	args := []string{
		"--bounding-set=" + bounding, "--inh-caps=-all", "--no-new-privs",
		"--reuid=" + id, "--regid=" + strconv.FormatInt(group, 10),
	}
	if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		return append(args, "--groups="+strconv.FormatInt(*pod.Spec.SecurityContext.FSGroup, 10))
	}
	return append(args, "--clear-groups")
}

// waitReady waits until the manifest's readiness probe succeeds.
func (p *runningPod) waitReady(t *testing.T, limit time.Duration) {
	t.Helper()
	probe := p.probe(t, p.container.ReadinessProbe)
	eventually(t, limit, p.Command().Name+" to be ready", func(ctx context.Context) error {
		if !p.Running() {
			t.Fatalf("%s ended: %v\n%s", p.Command().Name, p.Err(), p.Tail(10))
		}
		return probe(ctx)
	})
}

// probe returns a function for a probe: a request, or a command in the container.
func (p *runningPod) probe(t *testing.T, probe *corev1.Probe) func(context.Context) error {
	t.Helper()
	if probe.Exec != nil {
		return func(ctx context.Context) error {
			_, err := p.exec(ctx, probe.Exec.Command)
			return err
		}
	}
	port := probe.HTTPGet.Port.StrVal
	i := slices.IndexFunc(p.container.Ports, func(of corev1.ContainerPort) bool { return of.Name == port })
	if i < 0 {
		t.Fatalf("container %s has no port %q", p.container.Name, port)
	}
	host := net.JoinHostPort(cmp.Or(probe.HTTPGet.Host, p.address), fmt.Sprint(p.container.Ports[i].ContainerPort))
	return func(ctx context.Context) error {
		_, err := p.kubelet.node.Get(ctx, "http://"+host+probe.HTTPGet.Path)
		return err
	}
}

// exec runs a command of the container's own program beside it, and returns its output, or an
// error unless its exit code is 0.
func (p *runningPod) exec(ctx context.Context, command []string) (out string, err error) {
	if command[0] != p.container.Command[0] {
		return "", fmt.Errorf("%q isn't the program of the container", command)
	}
	log, err := os.CreateTemp("", "exec")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, log.Close(), os.Remove(log.Name())) }()
	beside := p.Command()
	beside.Log = log.Name()
	beside.Args = slices.Concat(beside.Args[:slices.Index(beside.Args, "--")+2], command[1:])
	process, err := p.kubelet.node.Start(beside)
	if err != nil {
		return "", err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.Kill()
	}
	out = process.Log()
	if process.Err() != nil {
		err = fmt.Errorf("%q: %w\n%s", command, process.Err(), out)
	}
	return out, err
}
