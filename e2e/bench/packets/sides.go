package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// Where receivers listen: on the tunnel's own address, or in a pod behind it.
const (
	inside = "10.9.0.2:5201"
	inPod  = "10.9.2.2:5201"
)

// bench is one run: two sides, ours first.
type bench struct {
	options
	self  string
	dir   string
	sides [2]*side
}

// side is a tunnel between two namespaces.
type side struct {
	name    string
	spaces  [2]*sandbox.Space
	pods    [2]*sandbox.Space // behind these
	servers [2]*sandbox.Process
}

func newBench(opts options) (b *bench, err error) {
	b = &bench{options: opts}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.self, err = os.Executable(); err != nil {
		return b, err
	}
	if b.dir, err = os.MkdirTemp("", "packets-"); err != nil {
		return b, err
	}
	programs, names, err := opts.programs()
	if err != nil {
		return b, err
	}
	for i := range b.sides {
		b.sides[i] = &side{name: names[i]}
		if err := b.sides[i].open(filepath.Join(b.dir, fmt.Sprint(i)), [2][]string{programs[i], programs[i]}, 1); err != nil {
			return b, fmt.Errorf("%s: %w", names[i], err)
		}
	}
	return b, nil
}

func (b *bench) close() error {
	errs := []error{os.RemoveAll(b.dir)}
	for _, s := range b.sides {
		if s == nil {
			continue
		}
		for _, space := range append(s.spaces[:], s.pods[:]...) {
			if space != nil {
				errs = append(errs, space.Close())
			}
		}
	}
	return errors.Join(errs...)
}

// open joins two namespaces by a link, and serves a device in each, with so many peers that
// no side answers for.
func (s *side) open(dir string, programs [2][]string, dead int) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var keys [2]wgtypes.Key
	for i := range s.spaces {
		if s.spaces[i], err = sandbox.New(fmt.Sprintf("%s %d", s.name, i)); err != nil {
			return err
		}
		if keys[i], err = wgtypes.GeneratePrivateKey(); err != nil {
			return err
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "underlay", PeerNamespace: s.spaces[1].NsFd()}
	veth.Name = "underlay"
	if err := s.spaces[0].Netlink.LinkAdd(veth); err != nil {
		return err
	}
	for i, space := range s.spaces {
		if err := setUp(space, "underlay", fmt.Sprintf("192.0.2.%d/24", i+1)); err != nil {
			return err
		}
		public := keys[1-i].PublicKey()
		config := fmt.Sprintf("private_key=%s\nlisten_port=51820\npublic_key=%s\nendpoint=192.0.2.%d:51820\nallowed_ip=10.9.0.%d/32\nallowed_ip=10.9.%d.0/24\n",
			hex.EncodeToString(keys[i][:]), hex.EncodeToString(public[:]), 2-i, 2-i, 2-i)
		for n := range dead {
			key, err := wgtypes.GeneratePrivateKey()
			if err != nil {
				return err
			}
			public = key.PublicKey()
			config += fmt.Sprintf("public_key=%s\nendpoint=192.0.2.%d:9\nallowed_ip=10.9.0.%d/32\n", hex.EncodeToString(public[:]), 2-i, 3+n)
		}
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			return err
		}
		program := programs[i]
		s.servers[i], err = space.Start(sandbox.Command{
			Name: s.name, Path: program[0], Args: append(program[1:len(program):len(program)], "wg0", path), Log: path + ".log", Session: true,
		})
		if err != nil {
			return err
		}
		for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if err = setUp(space, "wg0", fmt.Sprintf("10.9.0.%d/24", i+1)); err == nil {
				break
			}
			if time.Now().After(limit) || !s.servers[i].Running() {
				return fmt.Errorf("%w: %s", err, s.servers[i].Tail(3))
			}
		}
		if err := s.addPod(i); err != nil {
			return fmt.Errorf("pod: %w", err)
		}
	}
	return nil
}

// addPod puts a namespace behind that end of the tunnel, which forwards to and from it.
func (s *side) addPod(end int) (err error) {
	node := s.spaces[end]
	if s.pods[end], err = sandbox.New(fmt.Sprintf("%s %d, pod", s.name, end)); err != nil {
		return err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "eth0", PeerNamespace: s.pods[end].NsFd()}
	veth.Name = "pod"
	if err := node.Netlink.LinkAdd(veth); err != nil {
		return err
	}
	gateway := net.IPv4(10, 9, byte(end+1), 1)
	if err := errors.Join(
		setUp(node, "pod", gateway.String()+"/24"),
		setUp(s.pods[end], "eth0", fmt.Sprintf("10.9.%d.2/24", end+1)),
		s.pods[end].Netlink.RouteAdd(&netlink.Route{Gw: gateway}),
		node.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0) }),
	); err != nil {
		return err
	}
	link, err := node.Netlink.LinkByName("wg0")
	if err != nil {
		return err
	}
	remote := &net.IPNet{IP: net.IPv4(10, 9, byte(2-end), 0), Mask: net.CIDRMask(24, 32)}
	return node.Netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: remote, Scope: netlink.SCOPE_LINK})
}

func setUp(space *sandbox.Space, name, address string) error {
	l, err := space.Netlink.LinkByName(name)
	if err != nil {
		return err
	}
	ip, subnet, err := net.ParseCIDR(address)
	if err != nil {
		return err
	}
	subnet.IP = ip
	if err := space.Netlink.AddrReplace(l, &netlink.Addr{IPNet: subnet}); err != nil {
		return err
	}
	return space.Netlink.LinkSetUp(l)
}

// cpu is the processor time of both ends of the tunnel.
func (s *side) cpu() (sum time.Duration, err error) {
	for _, p := range s.servers {
		used, err := measure.CPU(p.PID())
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// start runs a mode of this program in a namespace of one end of a tunnel.
func (b *bench) start(from *sandbox.Space, args ...string) (*sandbox.Process, error) {
	log, err := os.CreateTemp(b.dir, args[0])
	if err != nil {
		return nil, err
	}
	if err := log.Close(); err != nil {
		return nil, err
	}
	return from.Start(sandbox.Command{Name: args[0], Path: b.self, Args: args, Log: log.Name()})
}

// finish waits until a process has ended and returns the last line it printed.
func finish(ctx context.Context, p *sandbox.Process) (string, error) {
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Kill()
		return "", context.Cause(ctx)
	case <-time.After(2 * time.Minute):
		p.Kill()
		return "", fmt.Errorf("%s doesn't end", p.Command().Name)
	}
	if p.Err() != nil {
		return "", fmt.Errorf("%s: %w: %s", p.Command().Name, p.Err(), p.Tail(3))
	}
	return p.Tail(1), nil
}
