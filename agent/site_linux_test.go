package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// patience is the timeout of waits, for an emulated or busy machine.
const patience = time.Minute

// kernelVariable is set where the kernel has WireGuard, so that tests which need it must
// not be skipped.
const kernelVariable = "SEMAPHORE_TEST_KERNEL"

// needKernel skips a test where the kernel has no WireGuard.
func needKernel(t *testing.T) {
	t.Helper()
	nstest.QuickRoot(t)
	kernel, err := tunnel.Supported()
	switch {
	case err != nil:
		t.Fatal(err)
	case !kernel && os.Getenv(kernelVariable) != "":
		t.Fatalf("%s is set, but the kernel has no WireGuard", kernelVariable)
	case !kernel:
		t.Skip("kernel WireGuard is not available here; make test-kernel runs this")
	}
}

// eachBackend runs a test with both backends.
func eachBackend(t *testing.T, f func(t *testing.T, backend string)) {
	t.Helper()
	nstest.QuickRoot(t)
	t.Run(config.BackendKernel, func(t *testing.T) {
		needKernel(t)
		f(t, config.BackendKernel)
	})
	t.Run(config.BackendUserspace, func(t *testing.T) {
		if os.Getenv(kernelVariable) != "" {
			t.Skip("runs everywhere else: the emulated machine is slow, and there for the kernel's WireGuard")
		}
		f(t, config.BackendUserspace)
	})
}

// site is a network with clusters in it: API servers at 192.0.2.1, nodes from
// 192.0.2.11 on.
type site struct {
	lan      *nstest.Namespace
	clusters map[string]*testCluster
	order    []*testCluster
	nodes    int
}

// testCluster is an API server, and where the pods of the cluster's nodes are.
type testCluster struct {
	*kubetest.Cluster
	name    string
	number  int // the second byte of its pods' addresses
	subnets [2]netip.Prefix
	nodes   int
}

// newSite starts the API servers of clusters.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{lan: nstest.New(t), clusters: map[string]*testCluster{}}
	check(t, s.lan.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "lan"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		return errors.Join(setUp("lan"), addAddress("lan", "192.0.2.1/24"))
	}))
	listen := func(address string) (listener net.Listener, err error) {
		err = s.lan.Do(func() error {
			listener, err = net.Listen("tcp", address)
			return err
		})
		return listener, err
	}
	for i, name := range names {
		number := 2 + 2*i
		c := &testCluster{
			Cluster: kubetest.StartCluster(t, "192.0.2.1:0", listen), name: name, number: number,
			subnets: [2]netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", number)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/48", number)),
			},
		}
		s.clusters[name] = c
		s.order = append(s.order, c)
	}
	return s
}

// testNode is a node: a namespace on the site's network, a pod behind it, folders
// that outlive its agent, and the agent as a process of its own.
type testNode struct {
	name    string
	cluster *testCluster
	ns, pod *nstest.Namespace
	address netip.Addr // of the node
	podIP   netip.Addr
	podCIDR netip.Prefix
	run     string // /run of the agent
	keys    string
	// env are the agent's settings. What is changed counts at the next start.
	env map[string]string
	log *logtest.Buffer

	agent  *exec.Cmd // nil: not running
	stdin  io.Closer
	socket string // where its probes are asked; empty: at the port

	engine      *exec.Cmd // nil: not yet
	engineStdin io.Closer
}

// addNode makes a node, with its object in its cluster. Its agent's remotes are the
// other clusters.
func (s *site) addNode(t *testing.T, c *testCluster, backend string) *testNode {
	t.Helper()
	s.nodes++
	c.nodes++
	n := &testNode{
		name: fmt.Sprintf("%s-%d", c.name, c.nodes), cluster: c, ns: nstest.New(t), pod: nstest.New(t),
		address: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + s.nodes)}),
		podIP:   netip.AddrFrom4([4]byte{10, byte(c.number), byte(c.nodes), 2}),
		podCIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(c.number), byte(c.nodes), 0}), 24),
		run:     t.TempDir(), keys: t.TempDir(), log: new(logtest.Buffer), env: map[string]string{},
	}
	nstest.Pair(t, s.lan, n.ns, n.name, "eth0")
	nstest.Pair(t, n.ns, n.pod, "cni0", "eth0")
	podCIDR6 := fmt.Sprintf("fd00:%d:0:%d::", c.number, c.nodes)
	check(t, s.lan.Do(func() error {
		port, err := netlink.LinkByName(n.name)
		if err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("lan")
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, bridge)
	}), n.ns.Do(func() error {
		return errors.Join(
			addAddress("eth0", n.address.String()+"/24"),
			// The address of a network plugin's bridge, the source of what the node itself sends.
			addAddress("cni0", n.podCIDR.Addr().Next().String()+"/24"), addAddress("cni0", podCIDR6+"1/64"),
			// Packets that bypass the tunnels leave in plaintext, to an unused address.
			addRoute("0.0.0.0/0", "192.0.2.1"),
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
		)
	}), n.pod.Do(func() error {
		return errors.Join(
			addAddress("eth0", n.podIP.String()+"/24"), addAddress("eth0", podCIDR6+"2/64"),
			addRoute("0.0.0.0/0", n.podCIDR.Addr().Next().String()), addRoute("::/0", podCIDR6+"1"),
		)
	}))
	c.Put(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, UID: types.UID("uid of " + n.name), CreationTimestamp: metav1.Now()},
		Spec:       corev1.NodeSpec{PodCIDR: n.podCIDR.String(), PodCIDRs: []string{n.podCIDR.String(), podCIDR6 + "/64"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: n.address.String()}}},
	})
	var remotes []string
	for _, r := range s.order {
		if r == c {
			continue
		}
		remotes = append(remotes, r.name)
		variable := "SEMAPHORE_REMOTE_" + strings.ToUpper(r.name) + "_"
		n.env[variable+"KUBECONFIG"] = r.Kubeconfig()
		n.env[variable+"POD_SUBNETS"] = r.subnets[0].String() + "," + r.subnets[1].String()
	}
	n.env["SEMAPHORE_REMOTES"] = strings.Join(remotes, ",")
	n.env["SEMAPHORE_CLUSTER_NAME"], n.env["SEMAPHORE_NODE_NAME"] = c.name, n.name
	n.env["SEMAPHORE_KUBECONFIG"] = c.Kubeconfig()
	n.env["SEMAPHORE_WG_BACKEND"], n.env["SEMAPHORE_WG_KEY_PATH"] = backend, n.keys
	n.env["SEMAPHORE_LOG_FORMAT"], n.env["SEMAPHORE_WG_ENGINE"] = "text", config.EngineWait
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the agent of %s:\n%s", n.name, n.log.String())
		}
	})
	return n
}

// Roles of this test binary besides that of running tests.
const (
	roleVariable = "AGENT_TEST_ROLE"
	roleAgent    = "agent"         // be semaphore-wireguard
	roleMounted  = "mounted agent" // be it, where the mounts are as they must be
	roleEngine   = "engine"        // be semaphore-engine
	runVariable  = "AGENT_TEST_RUN"
	// dropVariable, set to any value, drops NET_ADMIN from the agent.
	dropVariable = "AGENT_TEST_DROP"
)

// beAgent runs a program of ours in its own mount namespace, with /run from the folder
// that the environment names. It exits when its standard input ends, that is, when its
// parent has died.
func beAgent(program func()) {
	err := errors.Join(
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(os.Getenv(runVariable), "/run", "", unix.MS_BIND, ""),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare the agent's mounts:", err)
		os.Exit(1)
	}
	if os.Getenv(dropVariable) != "" && os.Getenv(roleVariable) == roleAgent {
		// At exec root gets the capabilities of the bounding set.
		runtime.LockOSThread()
		err = errors.Join(
			unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_ADMIN, 0, 0, 0), os.Setenv(roleVariable, roleMounted),
			unix.Exec("/proc/self/exe", os.Args, os.Environ()),
		)
		fmt.Fprintln(os.Stderr, "drop NET_ADMIN:", err)
		os.Exit(1)
	}
	beMounted(program)
}

func beMounted(program func()) {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	program()
}

// startProgram starts a program of ours on the node.
func (n *testNode) startProgram(t *testing.T, role string) (*exec.Cmd, io.Closer) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{roleVariable + "=" + role, runVariable + "=" + n.run, "PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE"), "HOME=/root"}
	for name, value := range n.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	stdin, err := cmd.StdinPipe()
	check(t, err, n.ns.Do(cmd.Start))
	return cmd, stdin
}

// start starts the node's agent, and before that its engine, unless that runs already or
// the backend is the kernel.
func (n *testNode) start(t *testing.T) {
	t.Helper()
	if n.engine == nil && n.env["SEMAPHORE_WG_BACKEND"] != config.BackendKernel {
		n.engine, n.engineStdin = n.startProgram(t, roleEngine)
		t.Cleanup(func() {
			_ = n.engine.Process.Kill()
			_ = n.engine.Wait() // "signal: killed"
		})
	}
	cmd, stdin := n.startProgram(t, roleAgent)
	n.agent, n.stdin = cmd, stdin
	t.Cleanup(func() {
		if n.agent == cmd {
			n.kill()
		}
	})
}

// stop ends the agent as the kubelet does, and checks its exit code.
func (n *testNode) stop(t *testing.T) {
	t.Helper()
	cmd := n.agent
	n.agent = nil
	check(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err != nil {
		t.Errorf("the agent of %s ended with %v", n.name, err)
	}
}

// kill ends the agent as kill -9 does.
func (n *testNode) kill() {
	_ = n.agent.Process.Kill()
	_ = n.agent.Wait() // "signal: killed"
	n.agent = nil
}

// ask sends a request to the agent, from its own node.
func (n *testNode) ask(path string) (body []byte, code int, err error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
		if n.socket != "" {
			return net.DialTimeout("unix", n.socket, patience)
		}
		err = n.ns.Do(func() error {
			conn, err = net.DialTimeout(network, address, patience)
			return err
		})
		return conn, err
	}}
	client := &http.Client{Transport: transport, Timeout: patience}
	response, err := client.Get("http://127.0.0.1:7774" + path)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return body, response.StatusCode, err
}

// status returns the agent's report; nil when it doesn't respond.
func (n *testNode) status() *statuspage.Agent {
	body, _, err := n.ask("/status")
	var rep statuspage.Agent
	if err != nil || json.Unmarshal(body, &rep) != nil {
		return nil
	}
	return &rep
}

// report waits for the agent's report.
func (n *testNode) report(t *testing.T) (rep *statuspage.Agent) {
	t.Helper()
	await(t, n.name+" to say what it does", func() bool {
		rep = n.status()
		return rep != nil
	})
	return rep
}

// waitReady waits until the agent is ready and has completed its start: it has published,
// or, without a local API server, reports that error.
func (n *testNode) waitReady(t *testing.T) {
	t.Helper()
	last, ready := "", false
	defer func() {
		if !ready {
			t.Logf("%s is not ready: %s", n.name, last)
		}
	}()
	await(t, n.name+" to be ready", func() bool {
		body, code, err := n.ask("/readyz")
		last = fmt.Sprint(string(body), code, err)
		if err != nil || code != http.StatusOK {
			return false
		}
		rep := n.status()
		if rep == nil {
			return false
		}
		last = fmt.Sprintf("%+v", *rep)
		failing := rep.Failure("watch nodes of "+n.cluster.name) != ""
		return rep.Published || failing && rep.Failure("routes") == ""
	})
	ready = true
}

// device returns the link of the tunnel to a remote as the kernel has it.
func (n *testNode) device(t *testing.T, remote string) (link netlink.Link) {
	t.Helper()
	check(t, n.ns.Do(func() (err error) {
		link, err = netlink.LinkByName(tunnel.DeviceName(remote))
		return err
	}))
	return link
}

// key returns the private key that the node has for a remote.
func (n *testNode) key(t *testing.T, remote string) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(n.keys, tunnel.DeviceName(remote)+".key"))
	check(t, err)
	return string(bytes.TrimSpace(key))
}

// await polls an expensive condition, seldom enough to leave an emulated machine time for
// what is awaited.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	asked := time.Time{}
	polltest.Until(t, patience, what, func() bool {
		if time.Since(asked) < patience/300 {
			return false
		}
		asked = time.Now()
		return holds()
	})
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func setUp(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

func addAddress(link, prefix string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD
	}
	return netlink.AddrAdd(l, addr)
}

// addRoute adds a route through a gateway; without one, to nowhere.
func addRoute(prefix, gateway string) error {
	dst, err := netlink.ParseIPNet(prefix)
	if err != nil {
		return err
	}
	route := netlink.Route{Dst: dst, Gw: net.ParseIP(gateway)}
	if gateway == "" {
		route.Type = unix.RTN_UNREACHABLE
	}
	return netlink.RouteAdd(&route)
}

// delRoute deletes a route that addRoute added without a gateway.
func delRoute(prefix string) error {
	dst, err := netlink.ParseIPNet(prefix)
	if err != nil {
		return err
	}
	return netlink.RouteDel(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE})
}

// backends returns the backends of a node's devices, sorted, without duplicates.
func backends(rep *statuspage.Agent) (names []string) {
	for i := range rep.Remotes {
		names = append(names, rep.Remotes[i].Device.Backend)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
