package testbed

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// KubeletConfig describes how a node runs pods.
type KubeletConfig struct {
	// Runc is the path of runc, which isn't one of package tools.
	Runc string
	// PauseImage is the name of the image that holds a pod's namespaces. It is in
	// one of the archives.
	PauseImage string
	// Images are OCI archives of all images: nothing is pulled.
	Images []string
}

// Kubelet is a kubelet and its containerd on a node. Pods that it runs are behind
// the node's bridge, like those of AddPod, and reach the underlay with the node's
// address.
type Kubelet struct {
	node    *Node
	process *sandbox.Process
	dir     string
}

// KubeletTools are what StartKubelet needs among the testbed's tools.
func KubeletTools() []string {
	return []string{
		tools.KubeControllerManager, tools.KubeScheduler, tools.Kubelet, tools.KubeProxy, tools.Containerd, tools.ContainerdShim,
		tools.Ctr, tools.CNIBridge, tools.CNIHostLocal, tools.CNILoopback,
	}
}

// containerdSocket is where containerd listens on each node.
const containerdSocket = "/run/containerd/containerd.sock"

// StartKubelet starts a kubelet on the node, and returns when the kubelet reports that the
// node is ready. The cluster must have Controllers; kube-proxy is separate.
func (n *Node) StartKubelet(ctx context.Context, cfg KubeletConfig) (*Kubelet, error) {
	k := &Kubelet{node: n, dir: filepath.Join(n.dir, "kubelet")}
	if err := k.start(ctx, cfg); err != nil {
		return nil, fmt.Errorf("start the kubelet of %s: %w", n.Name, err)
	}
	return k, nil
}

func (k *Kubelet) start(ctx context.Context, cfg KubeletConfig) error {
	for _, folder := range []string{k.file("cni"), k.file("log")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	g, err := k.node.tb.newGroups(k.node.Name)
	if err != nil {
		return err
	}
	if err := k.configure(cfg); err != nil {
		return err
	}
	if err := k.node.Masquerade(ctx); err != nil {
		return err
	}
	if err := k.run(g); err != nil {
		return err
	}
	started, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = Wait(started, "containerd", func(ctx context.Context) error {
		_, err := k.Ctr(ctx, "version")
		return errors.Join(err, k.running())
	})
	if err != nil {
		return err
	}
	for _, archive := range cfg.Images {
		if err := k.Load(ctx, archive); err != nil {
			return err
		}
	}
	ready, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return Wait(ready, "the node to be ready", func(ctx context.Context) error {
		return errors.Join(k.ready(ctx), k.running())
	})
}

// ready reports whether the kubelet itself has set its node's condition.
func (k *Kubelet) ready(ctx context.Context) error {
	object, err := k.node.Object(ctx)
	if err != nil {
		return err
	}
	if object.Status.NodeInfo.KubeletVersion == "" {
		return errors.New("the kubelet hasn't reported yet")
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return errors.New(condition.Message)
		}
	}
	return nil
}

func (k *Kubelet) running() error {
	if k.process.Running() {
		return nil
	}
	return fmt.Errorf("it ended: %w\n%s", k.process.Err(), k.process.Tail(10))
}

func (k *Kubelet) file(name string) string { return filepath.Join(k.dir, name) }

// configure writes the configuration of the kubelet, containerd and the network
// plugin.
func (k *Kubelet) configure(cfg KubeletConfig) error {
	c := k.node.Cluster
	client, err := c.plane.ca.client("system:node:"+k.node.Name, "system:nodes")
	if err != nil {
		return err
	}
	err = c.writeKubeconfig(k.file("kubeconfig"), kubeconfig{server: c.APIURL(), ca: c.plane.ca.pem, cert: client.cert, key: client.key})
	if err != nil {
		return err
	}
	containerd, err := k.containerdConfig(cfg)
	if err != nil {
		return err
	}
	kubelet, err := json.Marshal(k.kubeletConfig())
	if err != nil {
		return err
	}
	network, err := json.Marshal(k.networkConfig())
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(k.file("containerd.toml"), []byte(containerd), 0o644),
		os.WriteFile(k.file("kubelet.json"), kubelet, 0o644),
		os.WriteFile(k.file("cni/testbed.conflist"), network, 0o644),
		os.WriteFile(k.file("resolv.conf"), nil, 0o644),
	)
}

func (k *Kubelet) containerdConfig(cfg KubeletConfig) (string, error) {
	var plugins []string
	for _, name := range []string{tools.CNIBridge, tools.CNIHostLocal, tools.CNILoopback} {
		path, err := k.node.tb.tool(name)
		if err != nil {
			return "", err
		}
		plugins = append(plugins, "'"+filepath.Dir(path)+"'")
	}
	shim, err := k.node.tb.tool(tools.ContainerdShim)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
[grpc]
address = '%s'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '%s'
[plugins.'io.containerd.cri.v1.runtime']
# A container may have no right to lower it, and then neither has what it starts.
restrict_oom_score_adj = true
disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
runtime_path = '%s'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '%s'
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = [%s]
conf_dir = '%s'
`, containerdSocket, cfg.PauseImage, shim, cfg.Runc, strings.Join(plugins, ", "), k.file("cni")), nil
}

type object = map[string]any

func (k *Kubelet) kubeletConfig() object {
	none := "0%"
	return object{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"authentication":           object{"x509": object{"clientCAFile": k.node.Cluster.CAFile()}, "webhook": object{"enabled": true}, "anonymous": object{"enabled": false}},
		"authorization":            object{"mode": "Webhook"},
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"oomScoreAdj":              0,
		"makeIPTablesUtilChains":   false,
		"volumePluginDir":          "/var/lib/kubelet/volume-plugins",
		"resolvConf":               k.file("resolv.conf"),
		"clusterDNS":               []string{nth(k.node.Cluster.ServiceSubnets[0], 10).String()},
		"clusterDomain":            "cluster.local",
		// Update Secrets and ConfigMaps in pods soon.
		"syncFrequency": "5s",
		// Even if this machine's disk is nearly full.
		"localStorageCapacityIsolation": false,
		"imageGCHighThresholdPercent":   100,
		"evictionHard": object{
			"memory.available": none, "nodefs.available": none, "nodefs.inodesFree": none, "imagefs.available": none, "imagefs.inodesFree": none,
		},
	}
}

func (k *Kubelet) networkConfig() object {
	var ranges [][]object
	var routes []object
	for _, prefix := range k.node.PodCIDRs {
		everything := "::/0"
		if prefix.Addr().Is4() {
			everything = "0.0.0.0/0"
		}
		// Pods of AddPod take the first addresses.
		ranges = append(ranges, []object{{"subnet": prefix.String(), "rangeStart": nth(prefix, 100).String(), "gateway": nth(prefix, 1).String()}})
		routes = append(routes, object{"dst": everything})
	}
	return object{
		"cniVersion": "1.0.0",
		"name":       "testbed",
		"plugins": []object{{
			"type":      "bridge",
			"bridge":    podBridge,
			"isGateway": true,
			"ipam":      object{"type": "host-local", "dataDir": "/run/cni", "ranges": ranges, "routes": routes},
		}},
	}
}

//go:embed kubelet.sh
var kubeletScript string

// run starts containerd and the kubelet.
func (k *Kubelet) run(g groups) error {
	kubelet, err := k.node.tb.tool(tools.Kubelet)
	if err != nil {
		return err
	}
	containerd, err := k.node.tb.tool(tools.Containerd)
	if err != nil {
		return err
	}
	ctr, err := k.node.tb.tool(tools.Ctr)
	if err != nil {
		return err
	}
	var addresses, joined []string
	for _, address := range k.node.Addresses() {
		addresses = append(addresses, address.String())
	}
	for i, path := range g.paths {
		joined = append(joined, g.hierarchies[i]+" "+path)
	}
	k.process, err = k.node.Start(sandbox.Command{
		Name: "machine",
		Path: "/bin/bash",
		Args: []string{"-euc", kubeletScript, "kubelet.sh"},
		Env: append([]string{
			"HOME=/root",
			"GROUPS_TO_JOIN=" + strings.Join(joined, "\n"),
			"SCRIPT=" + kubeletScript,
			"CTR=" + ctr,
			"CONTAINERD_SOCKET=" + containerdSocket,
			"CONTAINERD=" + containerd + " --config " + k.file("containerd.toml"),
			"CONTAINERD_LOG=" + k.node.tb.LogPath(k.node.Name+"-containerd"),
			"KUBELET=" + kubelet + " --config " + k.file("kubelet.json") + " --kubeconfig " + k.file("kubeconfig") +
				" --hostname-override " + k.node.Name + " --node-ip " + strings.Join(addresses, ","),
			"KUBELET_LOG=" + k.node.tb.LogPath(k.node.Name+"-kubelet"),
		}, oneProcessor...),
		Mounts: []sandbox.Mount{sandbox.Bind(k.file("log"), "/var/log")},
	})
	return err
}

// Ctr runs ctr on the node's containerd, among the containers of Kubernetes.
func (k *Kubelet) Ctr(ctx context.Context, args ...string) (string, error) {
	ctr, err := k.node.tb.tool(tools.Ctr)
	if err != nil {
		return "", err
	}
	return k.node.Run(ctx, ctr, append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

// Load makes the images of an archive known to the node.
func (k *Kubelet) Load(ctx context.Context, archive string) error {
	_, err := k.Ctr(ctx, "images", "import", archive)
	return err
}

// Logs returns the existing log files of containers of a namespace's pods.
func (k *Kubelet) Logs(namespace string) ([]string, error) {
	return filepath.Glob(k.file("log/pods/" + namespace + "_*/*/*.log"))
}

// Kill sends SIGKILL to the first process of a pod's container, which must run.
func (k *Kubelet) Kill(ctx context.Context, namespace, pod, container string) error {
	id, err := k.container(ctx, namespace, pod, container)
	if err != nil {
		return err
	}
	_, err = k.Ctr(ctx, "task", "kill", "--signal", "SIGKILL", id)
	return err
}

// KillChildren sends SIGKILL to the processes of a pod's container but the first one,
// and returns how many there were.
func (k *Kubelet) KillChildren(ctx context.Context, namespace, pod, container string) (int, error) {
	pids, err := k.Processes(ctx, namespace, pod, container)
	if err != nil {
		return 0, err
	}
	for _, pid := range pids[1:] {
		if _, err := k.node.Run(ctx, "kill", "-KILL", strconv.Itoa(pid)); err != nil {
			return 0, err
		}
	}
	return len(pids) - 1, nil
}

// Processes returns the processes of a pod's container, at least one, as the node
// numbers them. The first one started the others.
func (k *Kubelet) Processes(ctx context.Context, namespace, pod, container string) ([]int, error) {
	id, err := k.container(ctx, namespace, pod, container)
	if err != nil {
		return nil, err
	}
	out, err := k.Ctr(ctx, "task", "ps", id)
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range strings.Lines(out) {
		var pid int
		if _, err := fmt.Sscan(line, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no processes in %q", out)
	}
	slices.Sort(pids)
	return pids, nil
}

// container returns the id of a pod's container, which must run.
func (k *Kubelet) container(ctx context.Context, namespace, pod, container string) (string, error) {
	p, err := k.node.Cluster.client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, status := range append(p.Status.ContainerStatuses, p.Status.InitContainerStatuses...) {
		if status.Name == container && status.State.Running != nil {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id, nil
		}
	}
	return "", fmt.Errorf("pod %s has no container %s that runs", pod, container)
}
