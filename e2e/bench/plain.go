package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// The link of a plain device, and its port, which is that of an agent's first.
const (
	plainLink = "wg0"
	plainPort = 51820
)

// plain is wireguard-go on a node, configured by hand over its socket.
type plain struct {
	node   *testbed.Node
	binary string
	key    wgtypes.Key
	// peers and routes are what a start sets up.
	peers  []plainPeer
	routes []netip.Prefix

	process *sandbox.Process
}

type plainPeer struct {
	key        wgtypes.Key // public
	endpoint   netip.AddrPort
	allowedIPs []netip.Prefix
}

func newPlain(node *testbed.Node, binary string) (*plain, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	return &plain{node: node, binary: binary, key: key}, nil
}

// peer is how others see the device.
func (p *plain) peer() plainPeer {
	return plainPeer{
		key:        p.key.PublicKey(),
		endpoint:   netip.AddrPortFrom(p.node.Addresses()[0], plainPort),
		allowedIPs: p.node.PodCIDRs,
	}
}

// start starts the process and sets up all, as fast as it can be done.
func (p *plain) start(ctx context.Context) error {
	// Our engine is a session, too: it outlives its parent.
	process, err := p.node.Start(sandbox.Command{Name: "wireguard-go", Path: p.binary, Args: []string{"-f", plainLink}, Session: true})
	if err != nil {
		return err
	}
	p.process = process
	if err := p.up(ctx); err != nil {
		return fmt.Errorf("start wireguard-go on %s: %w", p.node.Name, err)
	}
	return nil
}

func (p *plain) up(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no socket within 10 s"))
	defer cancel()
	conn, err := programs.DialUAPI(ctx, p.process, plainLink)
	if err != nil {
		return err
	}
	defer conn.Close()
	handle := p.node.Space().Netlink
	link, err := handle.LinkByName(plainLink)
	if err != nil {
		return err
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", plainLink, err)
	}
	if err := configure(conn, p.request()); err != nil {
		return err
	}
	for _, subnet := range p.routes {
		_, dst, err := net.ParseCIDR(subnet.String())
		if err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Scope: netlink.SCOPE_LINK}
		if err := handle.RouteReplace(route); err != nil {
			return fmt.Errorf("route %s: %w", subnet, err)
		}
	}
	return nil
}

// request is the configuration in the form of
// https://www.wireguard.com/xplatform/.
func (p *plain) request() string {
	var text strings.Builder
	text.WriteString("set=1\n")
	fmt.Fprintf(&text, "private_key=%s\nlisten_port=%d\n", hex.EncodeToString(p.key[:]), plainPort)
	for _, peer := range p.peers {
		fmt.Fprintf(&text, "public_key=%s\nendpoint=%s\npersistent_keepalive_interval=%d\n",
			hex.EncodeToString(peer.key[:]), peer.endpoint, int(peers.Keepalive.Seconds()))
		for _, prefix := range peer.allowedIPs {
			fmt.Fprintf(&text, "allowed_ip=%s\n", prefix)
		}
	}
	text.WriteString("\n")
	return text.String()
}

// configure sends a request and waits until the device has taken it.
func configure(conn net.Conn, request string) error {
	if _, err := io.WriteString(conn, request); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	if answer != "errno=0\n" {
		return fmt.Errorf("configure: the device answers %q", answer)
	}
	return nil
}

// stop ends the process and waits until its link is gone, too.
func (p *plain) stop(ctx context.Context) error {
	if err := p.process.Stop(ctx); err != nil {
		return err
	}
	return testbed.Wait(ctx, plainLink+" to go", func(context.Context) error {
		_, err := p.node.Space().Netlink.LinkByName(plainLink)
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			return nil
		}
		return errors.Join(err, errors.New("the link still exists"))
	})
}
