package agent

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// store leaves a peer of a remote on disk, as an earlier run would.
func store(t *testing.T, keyPath, remote, endpoint, prefix string) {
	t.Helper()
	key := tunnel.Key(bytes.Repeat([]byte{7}, len(tunnel.Key{})))
	err := peers.NewStore(keyPath, tunnel.DeviceName(remote), remote).Save([]peers.Remembered{{
		Node:     peers.Node{Name: remote + "-1", PublicKey: key.String(), Endpoint: endpoint, PodCIDRs: []string{prefix}},
		Prefixes: []netip.Prefix{netip.MustParsePrefix(prefix)},
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// The MTU of devices follows the paths to their peers. A configured MTU stays, and the
// status shows the one that fits.
func TestDevicesFitTheUnderlay(t *testing.T) {
	nstest.Root(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "underlay"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	underlay, err := netlink.LinkByName("underlay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(underlay); err != nil {
			t.Error(err)
		}
	})
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 1), Mask: net.CIDRMask(24, 32)}}
	setMTU := func(mtu int) {
		t.Helper()
		if err := netlink.LinkSetMTU(underlay, mtu); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{netlink.LinkSetUp(underlay), netlink.AddrAdd(underlay, address)} {
		if err != nil {
			t.Fatal(err)
		}
	}

	cfg := testConfig(t)
	cfg.Remotes[0].MTU = 0
	store(t, cfg.KeyPath, "gcp", "198.51.100.7:51820", "10.4.0.0/24")
	store(t, cfg.KeyPath, "merit", "198.51.100.8:51820", "fd06::/64")
	var logs logtest.Buffer
	a, err := newAgent(cfg, slog.New(slog.NewTextHandler(&logs, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tasks := a.tasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, len(tasks))
	for _, task := range tasks {
		go func() { done <- task.Run(ctx) }()
	}
	defer func() {
		cancel()
		for range tasks {
			if err := <-done; err != nil {
				t.Errorf("a task ended with %v", err)
			}
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(logs.Take())
		}
	}()

	for _, c := range []struct {
		underlay, auto, largest int
		tooLarge                bool // the configured 1420
	}{
		{1500, 1420, 1440, false}, {1400, 1320, 1340, true}, {9001, 8921, 8941, false}, {1300, 1280, 1240, true}, {1500, 1420, 1440, false},
	} {
		setMTU(c.underlay)
		var devices []statuspage.Device
		polltest.Until(t, time.Minute, "the MTUs for the underlay's", func() bool {
			devices = devices[:0]
			rep := a.status().(statuspage.Agent)
			for i := range rep.Remotes {
				devices = append(devices, rep.Remotes[i].Device)
			}
			return devices[0].MTU == c.auto && devices[0].LargestMTU == c.largest && devices[1].LargestMTU == c.largest
		})
		if devices[1].MTU != 1420 {
			t.Errorf("on %d: the configured MTU became %d", c.underlay, devices[1].MTU)
		}
		if got := devices[1].NarrowestEndpoint; got != "198.51.100.8" {
			t.Errorf("on %d: the narrowest endpoint is %q", c.underlay, got)
		}
		warned := bytes.Contains([]byte(logs.Take()), []byte("MTU exceeds the path to a peer"))
		if warned != c.tooLarge {
			t.Errorf("on %d: warned of an MTU that is too large: %v, want %v", c.underlay, warned, c.tooLarge)
		}
	}
}
