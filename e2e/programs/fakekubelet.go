package programs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// FakeKubelet replaces controllers and kubelets for the workloads in [Namespace] of clusters that
// have neither: for each DaemonSet and Deployment it creates the pods, starts their
// containers' programs with the template's environment, files and account, and reports which
// are ready. A changed template restarts the programs of the same pods with its environment. It
// doesn't support images, restarts and limits.
//
//	template             here
//	hostNetwork          the node's namespaces, else those of a pod of the testbed
//	command              a binary of the same name
//	env, envFrom         from fields of the pod and ConfigMaps
//	secret, emptyDir     folders, mounted for the process; Secrets are read again and again
//	projected            a token that is bound to the pod, as long as the volume requests
//	readinessProbe       asked until it succeeds; then a pod is ready while its programs run
type FakeKubelet struct {
	dir      string
	binaries map[string]string
	stop     func()

	mu   sync.Mutex
	pods map[string]*fakePod
	err  error
}

// fakePod is a pod of a FakeKubelet.
type fakePod struct {
	object   *corev1.Pod
	cluster  *testbed.Cluster
	node     *testbed.Node
	host     *testbed.Host
	programs []*Program // the last one is that of the container with the probe
	volumes  map[string]string
	ready    bool
	sources  string // of the environment, in the template
	err      error  // of its start
}

// StartFakeKubelet runs the workloads of clusters with these binaries, by their names in the image.
func StartFakeKubelet(ctx context.Context, dir string, binaries map[string]string, clusters ...*testbed.Cluster) *FakeKubelet {
	ctx, cancel := context.WithCancel(ctx)
	s := &FakeKubelet{dir: dir, binaries: binaries, pods: map[string]*fakePod{}}
	var loops sync.WaitGroup
	for _, c := range clusters {
		loops.Go(func() {
			ticker := time.NewTicker(200 * time.Millisecond)
			defer ticker.Stop()
			for ctx.Err() == nil {
				err := s.pass(ctx, c)
				s.mu.Lock()
				s.err = err
				s.mu.Unlock()
				select {
				case <-ctx.Done():
				case <-ticker.C:
				}
			}
		})
	}
	s.stop = func() {
		cancel()
		loops.Wait()
	}
	return s
}

// Stop ends it. Started programs keep running.
func (s *FakeKubelet) Stop() { s.stop() }

// Err returns the error of the last pass.
func (s *FakeKubelet) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Agent returns the agent of a node.
func (s *FakeKubelet) Agent(node *testbed.Node) (*Agent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[node.Cluster.Name+"/"+PodName(node)]
	if p == nil {
		return nil, fmt.Errorf("no agent was installed on %s", node.Name)
	}
	return &Agent{Program: p.programs[len(p.programs)-1]}, nil
}

// pass starts the workloads of a cluster that don't run yet, and reports.
func (s *FakeKubelet) pass(ctx context.Context, c *testbed.Cluster) error {
	sets, err := c.Client().AppsV1().DaemonSets(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range sets.Items {
		set := &sets.Items[i]
		ready := int32(0)
		for _, node := range c.Nodes() {
			ready += s.run(ctx, node, set.Name+"-"+node.Name, &set.Spec.Template, &errs)
		}
		n := int32(len(c.Nodes()))
		now := appsv1.DaemonSetStatus{
			ObservedGeneration: set.Generation, DesiredNumberScheduled: n, CurrentNumberScheduled: n,
			UpdatedNumberScheduled: n, NumberReady: ready, NumberAvailable: ready, NumberUnavailable: n - ready,
		}
		if set.Status.NumberReady != ready || set.Status.ObservedGeneration != set.Generation {
			set.Status = now
			_, err := c.Client().AppsV1().DaemonSets(Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
	}
	deployments, err := c.Client().AppsV1().Deployments(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		n, ready := *d.Spec.Replicas, int32(0)
		for replica := range n {
			node := c.Nodes()[int(replica)%len(c.Nodes())]
			ready += s.run(ctx, node, fmt.Sprintf("%s-%d", d.Name, replica+1), &d.Spec.Template, &errs)
		}
		if d.Status.ReadyReplicas != ready || d.Status.ObservedGeneration != d.Generation {
			d.Status = appsv1.DeploymentStatus{
				ObservedGeneration: d.Generation, Replicas: n, UpdatedReplicas: n, ReadyReplicas: ready, AvailableReplicas: ready, UnavailableReplicas: n - ready,
			}
			_, err := c.Client().AppsV1().Deployments(Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// run makes sure that a pod runs, and returns 1 if it is ready.
func (s *FakeKubelet) run(ctx context.Context, node *testbed.Node, name string, template *corev1.PodTemplateSpec, errs *[]error) (ready int32) {
	key := node.Cluster.Name + "/" + name
	s.mu.Lock()
	p := s.pods[key]
	s.mu.Unlock()
	if p == nil {
		p = &fakePod{cluster: node.Cluster, node: node, host: &node.Host, volumes: map[string]string{}}
		if err := p.start(ctx, filepath.Join(s.dir, node.Cluster.Name, name), name, template, s.binaries); err != nil {
			if p.object == nil || p.object.UID == "" {
				*errs = append(*errs, fmt.Errorf("%s: %w", key, err))
				return 0
			}
			p.err = err // The pod exists: it can't be started again.
		}
		s.mu.Lock()
		s.pods[key] = p
		s.mu.Unlock()
	}
	if p.err != nil {
		*errs = append(*errs, fmt.Errorf("%s: %w", key, p.err))
		return 0
	}
	if err := p.restart(ctx, template); err != nil {
		*errs = append(*errs, fmt.Errorf("%s: %w", key, err))
		return 0
	}
	if err := p.fill(ctx); err != nil {
		*errs = append(*errs, fmt.Errorf("%s: %w", key, err))
	}
	was := p.ready
	if p.ready = p.runs() && (was || p.probe(ctx) == nil); p.ready != was {
		*errs = append(*errs, p.report(ctx))
	}
	if p.ready {
		return 1
	}
	return 0
}

// start makes the pod and starts its programs.
func (p *fakePod) start(ctx context.Context, dir, name string, template *corev1.PodTemplateSpec, binaries map[string]string) error {
	p.object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: *template.Spec.DeepCopy()}
	p.object.Spec.NodeName = p.node.Name
	p.sources = sources(template)
	var err error
	if p.object, err = p.cluster.Client().CoreV1().Pods(Namespace).Create(ctx, p.object, metav1.CreateOptions{}); err != nil {
		return err
	}
	addresses := p.node.Addresses()
	if !p.object.Spec.HostNetwork {
		pod, err := p.node.AddPod(ctx, testbed.PodConfig{Name: name})
		if err != nil {
			return err
		}
		p.host, addresses = &pod.Host, pod.Addresses
	}
	p.object.Status = corev1.PodStatus{Phase: corev1.PodRunning, HostIP: p.node.Addresses()[0].String(), PodIP: addresses[0].String()}
	if err := p.report(ctx); err != nil {
		return err
	}
	account, err := p.cluster.Credentials(ctx, Namespace, p.object.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	request, err := boundTo(p.object)
	if err != nil {
		return err
	}
	if err := account.RotateFor(ctx, request); err != nil {
		return err
	}
	for _, volume := range p.object.Spec.Volumes {
		if volume.Secret != nil || volume.EmptyDir != nil {
			p.volumes[volume.Name] = filepath.Join(dir, volume.Name)
		}
	}
	if err := p.fill(ctx); err != nil {
		return err
	}
	for _, container := range slices.Concat(p.object.Spec.InitContainers, p.object.Spec.Containers) {
		env, err := p.environment(ctx, &container)
		if err != nil {
			return err
		}
		port := 8081
		if p.object.Spec.HostNetwork {
			port = ProbePort
		}
		program := &Program{
			Name: path.Base(container.Command[0]), Node: p.node, Local: account, Env: env,
			host: p.host, binary: binaries[path.Base(container.Command[0])], probePort: port, mounts: p.mounts(dir, &container),
		}
		if err := program.Start(); err != nil {
			return err
		}
		p.programs = append(p.programs, program)
	}
	return nil
}

// sources returns where a template's containers have their environment from: the names of ConfigMaps, which
// have a hash of their content, and values.
func sources(template *corev1.PodTemplateSpec) string {
	var all []string
	for _, container := range slices.Concat(template.Spec.InitContainers, template.Spec.Containers) {
		for _, from := range container.EnvFrom {
			all = append(all, from.ConfigMapRef.Name)
		}
		for _, variable := range container.Env {
			all = append(all, variable.Name+"="+variable.Value)
		}
	}
	return strings.Join(all, ",")
}

// restart restarts the programs if the template has another environment.
func (p *fakePod) restart(ctx context.Context, template *corev1.PodTemplateSpec) error {
	if sources(template) == p.sources {
		return nil
	}
	p.ready = false
	containers := slices.Concat(template.Spec.InitContainers, template.Spec.Containers)
	for i, program := range p.programs {
		env, err := p.environment(ctx, &containers[i])
		if err != nil {
			return err
		}
		// The engine is a container before the agent's, which outlives it.
		if i < len(p.programs)-1 && maps.Equal(env, program.Env) {
			continue
		}
		program.Env = env
		if err := errors.Join(program.Stop(ctx), program.Start()); err != nil {
			return err
		}
	}
	p.sources = sources(template)
	return nil
}

// environment returns the environment of a container.
func (p *fakePod) environment(ctx context.Context, container *corev1.Container) (map[string]string, error) {
	env := map[string]string{"HOSTNAME": p.object.Name}
	read := func(name string, optional *bool) (map[string]string, error) {
		m, err := p.cluster.Client().CoreV1().ConfigMaps(Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && optional != nil && *optional {
			return nil, nil
		}
		return m.Data, err
	}
	for _, from := range container.EnvFrom {
		data, err := read(from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		if err != nil {
			return nil, err
		}
		maps.Copy(env, data)
	}
	fields := map[string]string{
		"spec.nodeName": p.node.Name, "status.hostIP": p.object.Status.HostIP, "metadata.namespace": Namespace,
		"metadata.name": p.object.Name, "metadata.uid": string(p.object.UID),
	}
	for _, variable := range container.Env {
		switch from := variable.ValueFrom; {
		case from == nil:
			env[variable.Name] = variable.Value
		case from.FieldRef != nil:
			value, known := fields[from.FieldRef.FieldPath]
			if !known {
				return nil, fmt.Errorf("%s: the fake kubelet doesn't know %s", variable.Name, from.FieldRef.FieldPath)
			}
			env[variable.Name] = value
		case from.ConfigMapKeyRef != nil:
			data, err := read(from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Optional)
			if err != nil {
				return nil, err
			}
			if value, set := data[from.ConfigMapKeyRef.Key]; set {
				env[variable.Name] = value
			}
		}
	}
	return env, nil
}
