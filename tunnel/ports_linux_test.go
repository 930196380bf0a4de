package tunnel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// permutations lists, for each device, the index of the device whose port it gets.
var permutations = [][]int{{1, 0}, {1, 2, 0}, {2, 0, 1, 4, 3}, {4, 3, 2, 1, 0}}

func TestListenPortsArePermutedByAnotherConfiguration(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		for _, permutation := range permutations {
			t.Run(fmt.Sprint(permutation), func(t *testing.T) {
				if len(permutation) > 2 {
					nstest.Long(t)
				}
				configs, before := openSome(t, backend, len(permutation))
				var indices []int
				for _, d := range before {
					index, _ := d.Index()
					indices = append(indices, index)
					if err := d.Close(); err != nil {
						t.Fatal(err)
					}
				}
				ports := new(Ports)
				var after []*testDevice
				for i, from := range permutation {
					cfg := configs[i]
					cfg.ListenPort, cfg.Ports = configs[from].ListenPort, ports
					after = append(after, open(t, cfg))
				}
				comeToRest(t, after)
				for i, d := range after {
					d.check(t)
					if index, _ := d.Index(); index != indices[i] {
						t.Errorf("%s was recreated", d.Name())
					}
				}
			})
		}
	})
}

func TestListenPortsArePermutedByAnotherProgram(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		for _, permutation := range permutations {
			t.Run(fmt.Sprint(permutation), func(t *testing.T) {
				if len(permutation) > 2 {
					nstest.Long(t)
				}
				configs, devices := openSome(t, backend, len(permutation))
				for _, d := range devices {
					d.configure(t, thousands(2)...)
				}
				set := func(name string, port int) {
					t.Helper()
					if err := (protocol{}).ConfigureDevice(name, wgtypes.Config{ListenPort: &port}); err != nil {
						t.Fatal(err)
					}
				}
				for _, d := range devices {
					set(d.Name(), 0)
				}
				for i, from := range permutation {
					set(devices[i].Name(), configs[from].ListenPort)
				}
				for _, d := range devices {
					d.later()
				}
				comeToRest(t, devices)
				for _, d := range devices {
					d.check(t)
					if n := len(d.status(t).Peers); n != 2 {
						t.Errorf("%s has %d peers left of 2", d.Name(), n)
					}
				}
			})
		}
	})
}

// openSome returns devices with different listen ports.
func openSome(t *testing.T, backend string, n int) (configs []Config, devices []*testDevice) {
	t.Helper()
	ports := new(Ports)
	for i := range n {
		cfg := config(t, "r"+strconv.Itoa(i), backend)
		cfg.ListenPort, cfg.Ports = 22000+i, ports // outside the kernel's ephemeral range
		d := open(t, cfg)
		d.ensure(t)
		configs, devices = append(configs, cfg), append(devices, d)
	}
	return configs, devices
}

// comeToRest calls Ensure of each device, and again of those that request it or failed.
func comeToRest(t *testing.T, devices []*testDevice) {
	t.Helper()
	for range 3 {
		rest := true
		for _, d := range devices {
			changed, err := d.Ensure(t.Context())
			if err != nil {
				t.Logf("%s: %v", d.Name(), err)
			}
			rest = rest && !changed && err == nil
		}
		if rest {
			return
		}
	}
	t.Error("three calls of each device don't suffice")
}

// A device that is moved to another port, and back, keeps its sessions: the other side learns
// the new endpoint.
func TestSessionsGoOnAtAnotherPort(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		a, b := twoSites(t, backend, Userspace)
		meet(t, a, b, 0)
		conn := dial(t, a, b, 0)
		echo(t, conn, 1000)
		before := b.peer(t, a.key)
		a.call(t, request{Call: "park"})
		echo(t, conn, 1000)
		parked := b.peer(t, a.key)
		if parked.Endpoint == before.Endpoint || parked.Endpoint.Addr() != before.Endpoint.Addr() {
			t.Errorf("endpoint %s, want another port than that of %s", parked.Endpoint, before.Endpoint)
		}
		if res := a.call(t, request{Call: "ensure"}); !res.Changed {
			t.Error("the device doesn't take its port")
		}
		echo(t, conn, 1000)
		after := b.peer(t, a.key)
		if after.Endpoint != before.Endpoint || !after.LastHandshake.Equal(before.LastHandshake) {
			t.Errorf("endpoint %s and handshake at %v, want those of before: %s, %v", after.Endpoint, after.LastHandshake, before.Endpoint, before.LastHandshake)
		}
	})
}

func TestADeviceWorksWhileItsPortIsTaken(t *testing.T) {
	holders := map[string]func(t *testing.T) (name string, free func()){
		"a process, IPv4": func(t *testing.T) (string, func()) { return holdPort(t, "udp4", "127.0.0.1:51820") },
		"a process, IPv6": func(t *testing.T) (string, func()) { return holdPort(t, "udp6", "[::]:51820") },
		"a foreign WireGuard device of the kernel's": func(t *testing.T) (string, func()) {
			needKernel(t)
			return "wireguard.cali", foreignWireguard(t, "wireguard.cali", 51820)
		},
	}
	if families() < 2 {
		delete(holders, "a process, IPv6")
	}
	eachBackend(t, func(t *testing.T, backend string) {
		for what, hold := range holders {
			t.Run(what+" before us", func(t *testing.T) {
				name, free := hold(t)
				d := open(t, config(t, "gcp", backend))
				refused(t, d, name)
				if _, known := d.Index(); !known {
					t.Error("the link isn't known, so that no route leads there")
				}
				d.configure(t, thousands(2)...)
				port, known := d.ListenPort()
				if status := d.status(t); !known || port != status.ListenPort || port == d.cfg.ListenPort || len(status.Peers) != 2 {
					t.Errorf("port %d (known %v), status %+v", port, known, status)
				}
				d.log.Take()
				for range 3 {
					refused(t, d, name)
					if now := d.status(t).ListenPort; now != port {
						t.Errorf("moved from port %d to %d", port, now)
					}
				}
				if log := d.log.Take(); log != "" {
					t.Errorf("calls without a change are logged:\n%s", log)
				}
				free()
				d.ensure(t)
				d.check(t)
				if port, _ := d.ListenPort(); port != d.cfg.ListenPort || len(d.status(t).Peers) != 2 {
					t.Errorf("afterwards: port %d, status %+v", port, d.status(t))
				}
			})
		}
	})
}

// TestAForeignSocketDoesNotGetOurPort starts our device first: the other program doesn't get
// the port, and ours stays.
func TestAForeignSocketDoesNotGetOurPort(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		d.ensure(t)
		socket, err := net.ListenPacket("udp4", ":51820")
		if err == nil {
			_ = socket.Close()
			t.Error("the port of a device can be had twice")
		}
		d.later()
		if d.ensure(t) {
			t.Error("the device is changed")
		}
		d.check(t)
	})
}

func refused(t *testing.T, d *testDevice, name string) {
	t.Helper()
	_, err := d.Ensure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "51820") || !strings.Contains(err.Error(), name) {
		t.Fatalf("got %v, want an error that names port 51820 and %s", err, name)
	}
}

// runHolder runs a process that binds a UDP port until its standard input ends. It returns
// the exit code.
func runHolder() int {
	socket, err := net.ListenPacket(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = socket.Close() }()
	fmt.Println("listening")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// holdPort makes another process bind a port, and returns what is said of it.
func holdPort(t *testing.T, network, address string) (name string, free func()) {
	t.Helper()
	cmd := command(roleHolder)
	cmd.Args = append(cmd.Args, network, address)
	cmd.SysProcAttr.Pdeathsig = 0 // The starting thread may end; the process ends with its input.
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(free)
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return "another program of this host, see 'ss -ulnp sport = :51820' there", free
}

// foreignWireguard creates a foreign WireGuard device in the kernel.
func foreignWireguard(t *testing.T, name string, port int) (free func()) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	foreign := &netlink.Wireguard{LinkAttrs: attrs}
	key := wgtypes.Key(newPrivateKey().reveal())
	if err := netlink.LinkAdd(foreign); err != nil {
		t.Fatal(err)
	}
	free = sync.OnceFunc(func() {
		if err := netlink.LinkDel(foreign); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(free)
	if err := (protocol{}).ConfigureDevice(name, wgtypes.Config{PrivateKey: &key, ListenPort: &port}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(foreign); err != nil {
		t.Fatal(err)
	}
	return free
}
