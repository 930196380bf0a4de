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

// inside is where receivers listen, in the tunnel.
const inside = "10.9.0.2:5201"

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
		for _, space := range s.spaces {
			if space != nil {
				errs = append(errs, space.Close())
			}
		}
	}
	return errors.Join(errs...)
}

// open joins two namespaces by a link, and serves a device in each, with so many peers that
// nobody answers for.
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
		config := fmt.Sprintf("private_key=%s\nlisten_port=51820\npublic_key=%s\nendpoint=192.0.2.%d:51820\nallowed_ip=10.9.0.%d/32\n",
			hex.EncodeToString(keys[i][:]), hex.EncodeToString(public[:]), 2-i, 2-i)
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
			Name: s.name, Path: program[0], Args: append(program[1:len(program):len(program)], "wg0", path), Log: path + ".log",
		})
		if err != nil {
			return err
		}
		for limit := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err = setUp(space, "wg0", fmt.Sprintf("10.9.0.%d/24", i+1)); err == nil {
				break
			}
			if time.Now().After(limit) || !s.servers[i].Running() {
				return fmt.Errorf("%w: %s", err, s.servers[i].Tail(3))
			}
		}
	}
	return nil
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

// start runs a mode of this program at one end of a tunnel.
func (b *bench) start(s *side, end int, args ...string) (*sandbox.Process, error) {
	log, err := os.CreateTemp(b.dir, args[0])
	if err != nil {
		return nil, err
	}
	if err := log.Close(); err != nil {
		return nil, err
	}
	return s.spaces[end].Start(sandbox.Command{Name: args[0], Path: b.self, Args: args, Log: log.Name()})
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
