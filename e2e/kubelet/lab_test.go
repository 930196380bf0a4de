// Package kubelet_test runs the product as its users do: installed by our manifests
// in two clusters whose nodes have a kubelet, containerd and kube-proxy, while pods
// of both send each other packets that are counted.
package kubelet_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/image"
	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/meter"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Names of the images beside ours.
const (
	pauseImage = "testbed.local/pause:1"
	meterImage = "testbed.local/meter:1"
	dnsImage   = "testbed.local/coredns:1"
)

// versions are the tags of our image. Only their agents differ, in the version that they
// report.
var versions = [2]string{"one", "two"}

// source is what a version of our image is built from: a folder with the repository's
// files, and this one when it is empty.
type source struct{ version, root string }

// lab is clusters with a node each and a pod on it that measures: aws and gcp, and where
// it is asked for merit.
type lab struct {
	testbed  *testbed.Testbed
	root     string   // of the repository
	dir      string   // for files outside of it
	deploy   []string // for each cluster, the operator's copy of our manifests
	clusters []*testbed.Cluster
	nodes    []*testbed.Node
	kubelets []*testbed.Kubelet
	meters   []*corev1.Pod
	images   []string // archives that are loaded on the nodes

	mu   sync.Mutex
	tool string // semaphorectl, once it is built

	version [2]int // of versions, which are applied
	streams uint64 // how many there have been
}

// startLab starts clusters whose nodes have our image in both versions.
func startLab(t *testing.T, names ...string) *lab {
	t.Helper()
	return startLabOf(t, []source{{version: versions[0]}, {version: versions[1]}}, names...)
}

// startLabOf starts clusters whose nodes have an image of our programs of each source.
func startLabOf(t *testing.T, sources []source, names ...string) *lab {
	t.Helper()
	var configs []testbed.ClusterConfig
	for _, name := range names {
		configs = append(configs, testbed.ClusterConfig{Name: name})
	}
	return startLabWith(t, sources, configs...)
}

// startLabWith is startLabOf for clusters of these configurations.
func startLabWith(t *testing.T, sources []source, configs ...testbed.ClusterConfig) *lab {
	t.Helper()
	tb := testbed.Start(t, testbed.Config{}, testbed.KubeletTools()...)
	root, err := tools.Root(t.Context())
	must(t, err)
	closeOnSignal(t, tb)
	l := &lab{testbed: tb, root: root, dir: t.TempDir()}
	deploy := filepath.Join(l.dir, "deploy")
	must(t, os.CopyFS(deploy, os.DirFS(filepath.Join(root, "deploy"))))
	l.deploy = slices.Repeat([]string{deploy}, len(configs))
	l.images = buildImages(t, root, sources)
	for i := range configs {
		configs[i].Controllers = true
	}
	l.clusters, err = tb.StartClusters(within(t, 3*time.Minute), configs...)
	must(t, err)
	l.nodes, l.kubelets, l.meters = make([]*testbed.Node, len(configs)), make([]*testbed.Kubelet, len(configs)), make([]*corev1.Pod, len(configs))
	t.Cleanup(func() { l.printLogs(t) })
	l.each(t, func(i int) error { return l.startNode(t.Context(), i) })
	return l
}

// printLogs prints the ends of our pods' logs when the test has failed.
func (l *lab) printLogs(t *testing.T) {
	for _, k := range l.kubelets {
		if k == nil || !t.Failed() {
			continue
		}
		files, err := k.Logs(programs.Namespace)
		if err != nil {
			t.Error(err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Log(err) // Its pod has just gone.
				continue
			}
			lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
			t.Logf("end of %s:\n%s", file, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	}
}

// closeOnSignal removes everything when the test is interrupted.
func closeOnSignal(t *testing.T, tb *testbed.Testbed) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	t.Cleanup(func() {
		signal.Stop(signals)
		close(done)
	})
	go func() {
		select {
		case <-done:
		case s := <-signals:
			fmt.Fprintln(os.Stderr, "interrupted:", s, tb.Close())
			os.Exit(1)
		}
	}()
}

// each calls do for all clusters at the same time.
func (l *lab) each(t *testing.T, do func(cluster int) error) {
	t.Helper()
	errs := make([]error, len(l.clusters))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	must(t, errors.Join(errs...))
}

// buildImages returns the archives with ours, of each source one, and those that pods of
// the tests run.
func buildImages(t *testing.T, root string, sources []source) []string {
	t.Helper()
	t.Setenv("CGO_ENABLED", "0") // For a file system without libraries.
	dir := t.TempDir()
	pod, err := programs.BuildPackage(t.Context(), programs.Module+"/e2e/kubelet/pod", filepath.Join(dir, "pod"))
	must(t, err)
	binaries, err := tools.Build(t.Context(), t.Output(), tools.CoreDNS)
	must(t, err)
	others := filepath.Join(dir, "others.tar")
	layers := []map[string]string{{"/bin/pod": pod}}
	must(t, image.Write(others,
		image.Image{Name: pauseImage, Layers: layers, Entrypoint: []string{"/bin/pod", "pause"}, User: "65535:65535"},
		image.Image{Name: meterImage, Layers: layers, Entrypoint: []string{"/bin/pod", "meter"}},
		image.Image{Name: dnsImage, Layers: append(layers, map[string]string{"/bin/coredns": binaries[tools.CoreDNS]}), Entrypoint: []string{"/bin/pod"}}))

	var images []image.Image
	common := map[string]map[string]string{} // by root
	for _, source := range sources {
		from := cmp.Or(source.root, root)
		if common[from] == nil {
			common[from] = map[string]string{}
		}
		folder := filepath.Join(dir, source.version)
		must(t, os.Mkdir(folder, 0o755))
		data := map[string]string{}
		names, err := programs.In(from)
		must(t, err)
		for _, program := range names {
			layer := data
			if program == programs.ServiceMirror || program == programs.Policy || program == programs.Tokens {
				layer = common[from]
			}
			if layer["/bin/"+program] != "" {
				continue
			}
			layer["/bin/"+program], err = programs.BuildIn(t.Context(), from, programs.Package(from, program), filepath.Join(folder, program),
				"-ldflags=-s -w -X "+programs.Module+"/internal/process.number="+source.version+" -X "+programs.Module+"/internal/run.number="+source.version)
			must(t, err)
		}
		images = append(images, image.Image{
			Name:   imageOf(source.version),
			Layers: []map[string]string{common[from], data},
			User:   "65532:65532", // As the Dockerfile says.
		})
	}
	ours := filepath.Join(dir, "ours.tar")
	must(t, image.Write(ours, images...))
	return []string{others, ours}
}

// imageOf is the name of a version of our image, under which it is loaded on the nodes.
func imageOf(version string) string { return "docker.io/library/kube-semaphore:" + version }

func (l *lab) startNode(ctx context.Context, i int) (err error) {
	if l.nodes[i], l.kubelets[i], err = l.startKubelet(ctx, l.clusters[i]); err != nil {
		return err
	}
	l.meters[i], err = startMeter(ctx, l.clusters[i])
	return err
}

// startKubelet adds a node with a kubelet and kube-proxy to a cluster.
func (l *lab) startKubelet(ctx context.Context, c *testbed.Cluster) (*testbed.Node, *testbed.Kubelet, error) {
	node, err := c.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return nil, nil, err
	}
	if _, err := node.StartKubeProxy(ctx); err != nil {
		return nil, nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, nil, err
	}
	kubelet, err := node.StartKubelet(ctx, testbed.KubeletConfig{
		Runc:       filepath.Join(cache, "kube-semaphore", "runc", "usr", "sbin", "runc"), // Of tools/deps.
		PauseImage: pauseImage,
		Images:     l.images,
	})
	return node, kubelet, err
}

// startMeter creates a meter's pod, and returns it when it is ready.
func startMeter(ctx context.Context, c *testbed.Cluster) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	pods := c.Client().CoreV1().Pods(metav1.NamespaceDefault)
	var pod *corev1.Pod
	// Its service account comes a moment after the namespace.
	err := testbed.Wait(ctx, "a pod in "+c.Name+" to be created", func(ctx context.Context) (err error) {
		pod, err = pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "meter"},
			Spec: corev1.PodSpec{
				AutomountServiceAccountToken:  new(bool),
				TerminationGracePeriodSeconds: new(int64),
				Containers: []corev1.Container{{
					Name: "meter", Image: meterImage,
					// With a second processor, Go's scheduler searches for work at each packet.
					Env:       []corev1.EnvVar{{Name: "GOMAXPROCS", Value: "1"}},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}},
					// For a socket that buffers packets until they are read.
					SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}},
				}},
			},
		}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = testbed.Wait(ctx, "a pod in "+c.Name+" to be ready", func(ctx context.Context) (err error) {
		if pod, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		return podReady(pod)
	})
	return pod, err
}

func podReady(pod *corev1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s is %s, not ready: %v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses)
}

// ask sends a request to the meter of a cluster, from its node.
func (l *lab) ask(ctx context.Context, cluster int, path string) (string, error) {
	return l.nodes[cluster].Get(ctx, fmt.Sprintf("http://%s:%d%s", l.meters[cluster].Status.PodIP, meter.HTTPPort, path))
}

// within bounds a part of a test, generously.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errors.New("not within "+d.String()))
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
