package scenarios_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// allowed is how many peers a remote may have by default.
const allowed = 2000

// podMemory is the memory limit of an agent, and its engine, in deploy/wireguard/daemonset.yaml.
const podMemory = 512 << 20

// crowd is the API server of a remote with count nodes, each with more prefixes than allowed,
// which changes one after the other.
type crowd struct {
	count    int
	prefixes int
	endpoint netip.Addr
}

func (c *crowd) node(i, version int) string {
	key := make([]byte, 32)
	binary.BigEndian.PutUint64(key, uint64(i)+1)
	base := netip.MustParseAddr("100.64.0.0").As4()
	cidrs := make([]string, c.prefixes)
	for j := range cidrs {
		addr := [4]byte{}
		binary.BigEndian.PutUint32(addr[:], binary.BigEndian.Uint32(base[:])+uint32(i*c.prefixes+j)*4)
		cidrs[j] = strconv.Quote(netip.PrefixFrom(netip.AddrFrom4(addr), 30).String())
	}
	return fmt.Sprintf(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n%05d","resourceVersion":"%d","creationTimestamp":"2020-01-01T00:00:00Z",`+
		`"annotations":{%q:%q,%q:"%s:%d"}},"spec":{"podCIDRs":[%s]}}`,
		i, version, gcpKey, base64.StdEncoding.EncodeToString(key), gcpEndpoint, c.endpoint, 2000+i, strings.Join(cidrs, ","))
}

func (c *crowd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case query.Get("sendInitialEvents") == "true":
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
	case query.Get("watch") == "true":
		for version := 100; r.Context().Err() == nil; version++ {
			i := version % c.count
			_, err := fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", c.node(i, version))
			if err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	default:
		_, _ = fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`)
		for i := range c.count {
			comma := ","
			if i == 0 {
				comma = ""
			}
			_, _ = fmt.Fprint(w, comma, c.node(i, 5))
		}
		_, _ = fmt.Fprint(w, "]}")
	}
}

// serveTLS serves over TLS on a node until the test ends, and returns the path of its CA.
func serveTLS(t *testing.T, handler http.Handler, node *testbed.Node, port int) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{node.Addresses()[0].AsSlice()},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	listener, err := node.Listen(t.Context(), "tcp", ":"+strconv.Itoa(port))
	must(t, err)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// It ends with the test.
		_ = server.Serve(tls.NewListener(listener, &tls.Config{
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"http/1.1"},
		}))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	path := filepath.Join(t.TempDir(), "ca.crt")
	must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return path
}

// newGroup makes a control group with the memory of a container, which is removed when
// the test ends and what runs in it has ended; nil where this machine has none.
func newGroup(t *testing.T, name string) *testbed.MemoryGroup {
	t.Helper()
	group, err := testbed.NewMemoryGroup("semaphore-crowd-"+name+"-"+strconv.Itoa(os.Getpid()), podMemory)
	if err != nil {
		// The programs' memory is compared with the limit in any case.
		t.Logf("NO CONTROL GROUP ON THIS MACHINE: %v", err)
		return nil
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, testbed.Wait(ctx, "the end of the control group", func(context.Context) error { return group.Remove() }))
	})
	return group
}

// TestRemoteWithTwentyThousandNodes runs an agent and its engine, each with the memory of its
// container, with a remote of 20,000 nodes with 40 prefixes each, of which 200 change each
// second. Both survive, also when the agent restarts with the stored peers, and the other
// remote's pods stay reachable.
func TestRemoteWithTwentyThousandNodes(t *testing.T) {
	nstest.Root(t)
	dir, limited := t.TempDir(), t.TempDir()
	groups := map[string]*testbed.MemoryGroup{}
	for _, name := range []string{programs.WireGuard, programs.Engine} {
		if group := newGroup(t, name); group != nil {
			groups[name] = group
		}
	}
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	// The race detector takes several times the memory.
	plain, err := programs.Build(within(t, 10*time.Minute), programs.WireGuard, dir)
	must(t, err)
	p, err := programs.StartPair(within(t, 5*time.Minute), tb, plain, 1, nil)
	must(t, err)
	must(t, p.WaitConnected(within(t, time.Minute)))
	agent := p.Agents[0]
	must(t, agent.Stop(within(t, repair)))
	if len(groups) > 0 {
		for name, group := range groups {
			_, err := group.Wrap(limited, filepath.Join(dir, name))
			must(t, err)
		}
		p.Agents[0], err = programs.PrepareAgent(t.Context(), filepath.Join(limited, programs.WireGuard), agent.Node, p.GCP)
		must(t, err)
		agent = p.Agents[0]
	}

	node := p.Pods[1].Node
	hostile := &crowd{count: 20_000, prefixes: 40, endpoint: node.Addresses()[0]}
	const port = 16443
	agent.Env["SEMAPHORE_REMOTES"] = "gcp,evil"
	agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
	agent.Env[programs.Variable("evil", "API_URL")] = fmt.Sprintf("https://%s", netip.AddrPortFrom(node.Addresses()[0], port))
	agent.Env[programs.Variable("evil", "CA_FILE")] = serveTLS(t, hostile, node, port)
	agent.Env[programs.Variable("evil", "TOKEN_FILE")] = agent.Env[programs.Variable("gcp", "TOKEN_FILE")]
	agent.Env[programs.Variable("evil", "POD_SUBNETS")] = "100.64.0.0/10"
	agent.Env[programs.Variable("evil", "WG_MAX_PREFIXES")] = "32"
	var env []string
	if len(groups) == 0 {
		agent.Env["GOMEMLIMIT"] = strconv.Itoa(podMemory / 100 * 90)
		env = []string{"GOMEMLIMIT=" + agent.Env["GOMEMLIMIT"]}
	}
	must(t, agent.StartEngine(env...))
	for _, start := range []string{"the first time", "with stored peers"} {
		must(t, agent.Start())
		eventually(t, 3*time.Minute, "its peers and a file of them "+start, func(ctx context.Context) error {
			if !agent.Process().Running() {
				t.Fatalf("the agent has ended %s: %v\n%s", start, agent.Process().Err(), agent.Process().Tail(20))
			}
			status, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			remote := status.Remote("evil")
			if peers, prefixes := len(remote.Peers), 0; peers != allowed || !remote.API.Synced || !strings.Contains(remote.API.Error, "nodes or more are rejected") {
				return fmt.Errorf("%d peers, synced %t, %s", peers, remote.API.Synced, remote.API.Error)
			} else if prefixes = len(remote.Peers[0].AllowedIPs); prefixes != 32+1 { // and the address that it is probed at
				return fmt.Errorf("a peer has %d prefixes", prefixes)
			}
			stored := readStored(agent.Node, "wireguard.evil")
			if stored != allowed {
				return fmt.Errorf("%d peers are stored", stored)
			}
			return programs.Reach(ctx, p.Pods[0], p.Pods[1])
		})
		// All reported peers are stored after the pass.
		for _, want := range []string{
			`semaphore_wg_rejected_nodes{cluster="evil",reason="too_many_peers"} 8000`,
			`semaphore_wg_rejected_nodes{cluster="evil",reason="many_prefixes"} 2000`,
			`semaphore_wg_remote_rejected_objects{cluster="evil",kind="nodes"} 10000`,
		} {
			eventually(t, time.Minute, start+": "+want, func(ctx context.Context) error {
				metrics, err := agent.Metrics(ctx)
				if err == nil && !strings.Contains(metrics, want) {
					err = errors.New("metrics lack it")
				}
				return err
			})
		}
		must(t, agent.Ready(t.Context()))
		must(t, agent.Healthy(t.Context()))
		must(t, p.WaitConnected(within(t, time.Minute)))
		if !agent.Engine().Running() {
			t.Fatalf("the engine has ended %s: %v\n%s", start, agent.Engine().Err(), agent.Engine().Tail(20))
		}
		engine, err := agent.Node.Space().PIDs(programs.Engine)
		must(t, err)
		if len(engine) != 2 {
			t.Errorf("%s: the processes %d are the engine, want one that holds devices and one that serves them", start, engine)
		}
		for name, pids := range map[string][]int{"agent": {agent.Process().PID()}, "engine": engine} {
			var resident int64
			for _, pid := range pids {
				resident += residentPeak(t, pid)
			}
			t.Logf("%s: %s: %d MiB resident at most", start, name, resident>>20)
			if resident > podMemory {
				t.Errorf("%s: %s: %d MiB, want %d at most", start, name, resident>>20, podMemory>>20)
			}
		}
		if start == "the first time" {
			// As the kernel would.
			agent.Kill()
		}
	}
	for name, group := range groups {
		peak, kills, err := group.Peak()
		must(t, err)
		t.Logf("%s: %d MiB of %d at most in the control group", name, peak>>20, podMemory>>20)
		if kills > 0 {
			t.Errorf("%s: the kernel has killed %d processes", name, kills)
		}
	}
}

// readStored returns how many nodes are stored of a device's peers.
func readStored(node *testbed.Node, device string) int {
	data, err := os.ReadFile(filepath.Join(node.VarLib(), programs.WireGuard, device+".peers.json"))
	if err != nil {
		return 0
	}
	var file struct{ Nodes []struct{ Name string } }
	if json.Unmarshal(data, &file) != nil {
		return 0
	}
	return len(file.Nodes)
}

// residentPeak is the most resident memory that a process has had, in bytes.
func residentPeak(t *testing.T, pid int) int64 {
	t.Helper()
	status := readFile(t, fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(status, "VmHWM:")
	fields := strings.Fields(after)
	if len(fields) == 0 {
		t.Fatalf("no VmHWM in %s", status)
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	must(t, err)
	return kib << 10
}
