package routes

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// A host connects to a remote pod by a ClusterIP, which kube-proxy in IPVS mode has on
// kube-ipvs0. Without our addresses the masqueraded packets have a source that the
// remote's WireGuard doesn't accept from this node; with them the pod sees, as it does
// without a service, this node's address in the mesh. When the endpoint is withdrawn, the
// service refuses connections.
func TestHostReachesRemotePodsThroughIPVS(t *testing.T) {
	kubeProxy, err := exec.LookPath("kube-proxy")
	if err != nil {
		t.Skip("NOT TESTED HERE: go run ./e2e/kernel -programs kube-proxy,iptables,ipset -run " + t.Name() + " ./routes")
	}
	nstest.Run(t, func(t *testing.T) {
		node, remote := nstest.Current(t), nstest.New(t)
		nstest.Pair(t, node, remote, "eth0", "eth0")
		// To the IPv6 pod the kernel prefers the address of the uplink to the one
		// inside the podCIDR: it has more of the pod's leading bits (RFC 6724).
		addAddress(t, "eth0", "192.0.2.1/24", "fd05::1/64")
		addDevice(t, "cni0")
		addAddress(t, "cni0", "10.1.3.1/24", "fd01:0:0:3::1/64")
		keys := newKeys(t)
		must(t, addPeer("wireguard.gcp", keys[0], keys[1], "192.0.2.2:51820", subnet4, subnet6))
		must(t, remote.Do(func() error {
			addAddress(t, "eth0", "192.0.2.2/24")
			addAddress(t, "lo", "10.4.1.1/32", "fd04::1/128")
			if err := addPeer("wireguard.aws", keys[1], keys[0], "192.0.2.1:51820", "10.1.3.0/24", "fd01:0:0:3::/64"); err != nil {
				return err
			}
			device := link(t, "wireguard.aws").Attrs().Index
			addRoute(t, netlink.Route{LinkIndex: device, Scope: netlink.SCOPE_LINK}, "10.1.3.0/24")
			addRoute(t, netlink.Route{LinkIndex: device}, "fd01:0:0:3::/64")
			return serveSources(t, netip.MustParseAddrPort("10.4.1.1:8888"), netip.MustParseAddrPort("[fd04::1]:8888"))
		}))
		// Decrypted packets outside the sender's allowed IPs count as frame errors.
		refused := func() (n uint64) {
			must(t, remote.Do(func() error {
				n = link(t, "wireguard.aws").Attrs().Statistics.RxFrameErrors
				return nil
			}))
			return n
		}

		src, err := Source(prefixes("10.1.3.0/24", "fd01:0:0:3::/64"))
		must(t, err)
		table := newTable(t)
		targets := []Target{{Device: link(t, "wireguard.gcp").Attrs().Index, Subnets: prefixes(subnet4, subnet6)}}
		must(t, netlink.LinkSetAlias(link(t, "wireguard.gcp"), tunnel.Alias("gcp")))
		mustRoute(t, table, Desired(targets[0].Subnets, targets[0].Device, src))

		cases := []struct{ clusterIP, pod, want netip.Addr }{
			{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.4.1.1"), netip.MustParseAddr("10.1.3.1")},
			{netip.MustParseAddr("fd96::10"), netip.MustParseAddr("fd04::1"), netip.MustParseAddr("fd01:0:0:3::1")},
		}
		url, withdraw := stubAPI(t, "192.0.2.1", map[netip.Addr]netip.Addr{
			cases[0].clusterIP: cases[0].pod, cases[1].clusterIP: cases[1].pod,
		})
		startKubeProxy(t, kubeProxy, url)

		for _, c := range cases {
			pod, service := netip.AddrPortFrom(c.pod, 8888), netip.AddrPortFrom(c.clusterIP, 80)
			if seen, err := sourceAt(pod, time.Minute); err != nil || seen != c.want {
				t.Fatalf("without a service the pod sees %s, want %s: %v", seen, c.want, err)
			}
			before := refused()
			polltest.Until(t, 2*time.Minute, "the remote to refuse what comes through "+service.String(), func() bool {
				if seen, err := sourceAt(service, time.Second/2); err == nil {
					t.Fatalf("%s answers without our addresses: the pod sees %s", service, seen)
				}
				return refused() > before
			})
			t.Logf("%s without our addresses: no answer, the remote refused %d packets", service, refused()-before)
		}
		mustSyncAddresses(t, table, DesiredAddresses(targets, src))
		for _, c := range cases {
			service := netip.AddrPortFrom(c.clusterIP, 80)
			seen, err := sourceAt(service, 30*time.Second)
			if err != nil || seen != c.want {
				t.Errorf("the pod behind %s sees %s, want %s: %v", service, seen, c.want, err)
			}
			t.Logf("%s with our addresses: the pod sees %s", service, seen)
		}
		link(t, "kube-ipvs0") // Proves IPVS mode.

		withdrawn := time.Now()
		withdraw()
		for _, c := range cases {
			service := netip.AddrPortFrom(c.clusterIP, 80)
			polltest.Until(t, 2*time.Minute, service.String()+" to refuse", func() bool {
				began := time.Now()
				_, err := sourceAt(service, 5*time.Second)
				if !errors.Is(err, unix.ECONNREFUSED) {
					return false
				}
				t.Logf("%s without an endpoint that is ready refuses %v after it was withdrawn, and within %v",
					service, began.Sub(withdrawn).Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
				return true
			})
		}
	})
}

// startKubeProxy runs kube-proxy in IPVS mode with an API server until the test ends.
func startKubeProxy(t *testing.T, program, api string) {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.Command(program,
		"--master="+api, "--kube-api-content-type=application/json", "--hostname-override=node",
		"--proxy-mode=ipvs", "--cluster-cidr=10.1.3.0/24,fd01:0:0:3::/64",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // It was killed: the error is expected.
		if t.Failed() {
			t.Logf("kube-proxy said:\n%s", output.String())
		}
	})
}

// stubAPI serves the part of an API server that kube-proxy needs, with one node and one
// service, whose ClusterIPs have an endpoint each. It returns the URL, and a function that
// withdraws all endpoints like the mirror.
func stubAPI(t *testing.T, node string, endpoints map[netip.Addr]netip.Addr) (url string, withdraw func()) {
	t.Helper()
	type object = map[string]any
	list := func(version, kind string, items ...object) object {
		return object{"apiVersion": version, "kind": kind + "List", "metadata": object{"resourceVersion": "1"}, "items": append([]object{}, items...)}
	}
	var (
		clusterIPs []string
		slices     []object
	)
	for _, clusterIP := range []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")} {
		family := "IPv6"
		if clusterIP.Is4() {
			family = "IPv4"
		}
		clusterIPs = append(clusterIPs, clusterIP.String())
		slices = append(slices, object{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
			"metadata": object{
				"name": "abroad-" + strings.ToLower(family), "namespace": "default", "resourceVersion": "1",
				"labels": object{"kubernetes.io/service-name": "abroad"},
			},
			"addressType": family,
			"endpoints":   []object{{"addresses": []string{endpoints[clusterIP].String()}, "conditions": object{"ready": true}}},
			"ports":       []object{{"name": "http", "port": 8888, "protocol": "TCP"}},
		})
	}
	nodeObject := object{
		"apiVersion": "v1", "kind": "Node", "metadata": object{"name": "node", "resourceVersion": "1"},
		"status": object{"addresses": []object{{"type": "InternalIP", "address": node}}},
	}
	const slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
	withdrawn := make(chan struct{})
	answers := map[string]object{
		"/api/v1/nodes":      list("v1", "Node", nodeObject),
		"/api/v1/nodes/node": nodeObject,
		"/api/v1/services": list("v1", "Service", object{
			"metadata": object{"name": "abroad", "namespace": "default"},
			"spec": object{
				"type": "ClusterIP", "clusterIP": clusterIPs[0], "clusterIPs": clusterIPs,
				"ipFamilies": []string{"IPv4", "IPv6"}, "ipFamilyPolicy": "RequireDualStack",
				"ports": []object{{"name": "http", "port": 80, "targetPort": 8888, "protocol": "TCP"}},
			},
		}),
		slicesPath: list("discovery.k8s.io/v1", "EndpointSlice", slices...),
		"/apis/networking.k8s.io/v1/servicecidrs": list("networking.k8s.io/v1", "ServiceCIDR"),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.Path]
		switch query := r.URL.Query(); {
		case !known:
			w.WriteHeader(http.StatusNotFound)
			answer = object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": http.StatusNotFound}
		case query.Has("sendInitialEvents"):
			// No streaming lists, so that clients list.
			w.WriteHeader(http.StatusUnprocessableEntity)
			answer = object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Invalid", "code": http.StatusUnprocessableEntity}
		case query.Get("watch") == "true" || query.Get("watch") == "1":
			w.(http.Flusher).Flush()
			if r.URL.Path == slicesPath {
				select {
				case <-r.Context().Done():
				case <-withdrawn:
					for _, slice := range slices {
						change := maps.Clone(slice)
						change["metadata"] = maps.Clone(slice["metadata"].(object))
						change["metadata"].(object)["resourceVersion"] = "2"
						change["endpoints"] = []object{{
							"addresses":  slice["endpoints"].([]object)[0]["addresses"],
							"conditions": object{"ready": false, "serving": false},
						}}
						_ = json.NewEncoder(w).Encode(object{"type": "MODIFIED", "object": change}) // As below.
					}
					w.(http.Flusher).Flush()
				}
			}
			<-r.Context().Done()
			return
		}
		_ = json.NewEncoder(w).Encode(answer) // The client may have gone.
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL, func() { close(withdrawn) }
}

// serveSources answers each connection with its source address.
func serveSources(t *testing.T, at ...netip.AddrPort) error {
	for _, a := range at {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(a))
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.AcceptTCP()
				if err != nil {
					return
				}
				_, _ = io.WriteString(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String())
				_ = conn.Close()
			}
		}()
	}
	return nil
}

// sourceAt returns the source address that a serveSources server sees.
func sourceAt(server netip.AddrPort, limit time.Duration) (netip.Addr, error) {
	conn, err := net.DialTimeout("tcp", server.String(), limit)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return netip.Addr{}, err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.ParseAddr(string(answer))
}
