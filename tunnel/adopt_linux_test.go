package tunnel

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// kernelLink creates a WireGuard link in the kernel as another program would.
func kernelLink(t *testing.T, name, alias string, key *PrivateKey, peers ...Peer) link {
	t.Helper()
	if err := createKernelLink(name, 1420); err != nil {
		t.Fatal(err)
	}
	l := mustFind(t, name)
	if alias != "" {
		if err := l.setAlias(alias); err != nil {
			t.Fatal(err)
		}
	}
	var cfg wgtypes.Config
	if key != nil {
		secret := wgtypes.Key(key.reveal())
		cfg.PrivateKey = &secret
	}
	for _, change := range Diff(nil, peers, nil) {
		cfg.Peers = append(cfg.Peers, change.config())
	}
	if err := (protocol{}).ConfigureDevice(name, cfg); err != nil {
		t.Fatal(err)
	}
	return l
}

// The original tool leaves wireguard.<remote>, without alias, and the key in the same file
// as ours. Migrating keeps link and sessions.
func TestLinkOfTheOriginalToolIsTakenOver(t *testing.T) {
	needKernel(t)
	cfg := config(t, "gcp", Auto)
	key := newPrivateKey()
	writeTestFile(t, filepath.Join(cfg.KeyPath, cfg.Name+".key"), strings.TrimSpace(string(key.text())), 0o600)
	peers := thousands(3)
	before := kernelLink(t, cfg.Name, "", &key, peers...)

	d := open(t, cfg)
	d.ensure(t)
	d.check(t)
	if index, _ := d.Index(); index != before.index {
		t.Errorf("index %d, want that of the link that was there, %d", index, before.index)
	}
	if got := d.configure(t, peers...); got.Any() {
		t.Errorf("the peers that were there changed: %+v", got)
	}
}

// A process that ends between creating a link and setting its alias leaves a blank one,
// which no other program can be using.
func TestABlankKernelLinkIsTakenOver(t *testing.T) {
	needKernel(t)
	cfg := config(t, "gcp", Kernel)
	before := kernelLink(t, cfg.Name, "", nil)
	d := open(t, cfg)
	d.ensure(t)
	d.check(t)
	if index, _ := d.Index(); index != before.index {
		t.Errorf("index %d, want %d", index, before.index)
	}
}

func TestForeignKernelLinksAreLeftAlone(t *testing.T) {
	needKernel(t)
	other := newPrivateKey()
	tests := map[string]func(t *testing.T, name string) link{
		"another key":       func(t *testing.T, name string) link { return kernelLink(t, name, "", &other) },
		"another remote":    func(t *testing.T, name string) link { return kernelLink(t, name, Alias("aws"), &other) },
		"an alias, no key":  func(t *testing.T, name string) link { return kernelLink(t, name, "vpn", nil) },
		"peers, but no key": func(t *testing.T, name string) link { return kernelLink(t, name, "", nil, testPeer(1, "")) },
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			for _, backend := range []string{Kernel, Userspace} {
				cfg := config(t, "gcp", backend)
				before := create(t, cfg.Name)
				d := open(t, cfg)
				if _, err := d.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), cfg.Name) {
					t.Errorf("%s: got %v, want an error that names the device", backend, err)
				}
				if err := errors.Join(d.Remove(t.Context()), Remove(t.Context(), cfg.Name, cfg.Alias)); err == nil {
					t.Error("Remove takes it for ours")
				}
				after := mustFind(t, cfg.Name)
				if diff := cmp.Diff(before, after, cmp.AllowUnexported(link{}), cmp.FilterPath(
					func(p cmp.Path) bool { return p.Last().String() == ".alias" }, cmp.Ignore())); diff != "" {
					t.Errorf("it was changed:\n%s", diff)
				}
				if err := after.remove(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A link with our key gets its alias back after that was changed.
func TestAKernelLinkWithOurKeyGetsItsAliasBack(t *testing.T) {
	needKernel(t)
	d := open(t, config(t, "gcp", Kernel))
	d.ensure(t)
	index, _ := d.Index()
	for _, alias := range []string{"\x00", "uplink"} {
		if err := netlink.LinkSetAlias(mustFind(t, d.Name()).ref(), alias); err != nil {
			t.Fatal(err)
		}
		if !d.ensure(t) {
			t.Errorf("alias %q: no change is reported", alias)
		}
		d.check(t)
	}
	if after, _ := d.Index(); after != index {
		t.Error("the link was recreated")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
