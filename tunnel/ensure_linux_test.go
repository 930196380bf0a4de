package tunnel

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestEnsureCreatesTheDeviceOnce(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		if _, known := d.Index(); known {
			t.Error("the index is known before the link exists")
		}
		if !d.ensure(t) {
			t.Error("the first call reports no change")
		}
		d.check(t)
		d.log.Take()
		for range 3 {
			if d.ensure(t) {
				t.Error("a further call reports a change")
			}
			d.later()
		}
		if log := d.log.Take(); log != "" {
			t.Errorf("calls without a change are logged:\n%s", log)
		}
	})
}

func TestEnsureRepairs(t *testing.T) {
	faults := map[string]func(t *testing.T, l link) error{
		"the MTU":       func(_ *testing.T, l link) error { return netlink.LinkSetMTU(l.ref(), 1280) },
		"the state":     func(_ *testing.T, l link) error { return netlink.LinkSetDown(l.ref()) },
		"another alias": func(_ *testing.T, l link) error { return netlink.LinkSetAlias(l.ref(), "uplink") },
		"no alias":      func(_ *testing.T, l link) error { return netlink.LinkSetAlias(l.ref(), "\x00") },
		"the listen port": func(_ *testing.T, l link) error {
			port := 51999
			return protocol{}.ConfigureDevice(l.name, wgtypes.Config{ListenPort: &port})
		},
		"the firewall mark": func(_ *testing.T, l link) error {
			mark := 7
			return protocol{}.ConfigureDevice(l.name, wgtypes.Config{FirewallMark: &mark})
		},
		"the private key": func(_ *testing.T, l link) error {
			key := wgtypes.Key(newPrivateKey().reveal())
			return protocol{}.ConfigureDevice(l.name, wgtypes.Config{PrivateKey: &key})
		},
	}
	eachBackend(t, func(t *testing.T, backend string) {
		for name, fault := range faults {
			if backend == Kernel && name == "no alias" {
				continue // In a test of its own: the key determines the owner of the link.
			}
			t.Run(name, func(t *testing.T) {
				if name != "the MTU" && name != "the listen port" {
					nstest.Long(t)
				}
				cfg := config(t, "gcp", backend)
				cfg.Mark = 0x1073
				d := open(t, cfg)
				d.ensure(t)
				index, _ := d.Index()
				if err := fault(t, mustFind(t, d.Name())); err != nil {
					t.Fatal(err)
				}
				d.later()
				if !d.ensure(t) {
					t.Error("no change is reported")
				}
				d.check(t)
				if after, _ := d.Index(); after != index {
					t.Error("the link was recreated")
				}
			})
		}
	})
}

func TestEnsureRecreatesADeletedLink(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		d.ensure(t)
		peers := thousands(3)
		d.configure(t, peers...)
		before, _ := d.Index()
		if err := mustFind(t, d.Name()).remove(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Status(t.Context()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Status of a deleted device: %v, want os.ErrNotExist", err)
		}
		if backend == Userspace {
			select {
			case <-d.notified:
			case <-time.After(time.Minute):
				t.Error("no notification")
			}
		}
		if _, err := d.Configure(t.Context(), peers[:2]); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Configure of a deleted device: %v, want os.ErrNotExist", err)
		}
		if !d.ensure(t) {
			t.Error("no change is reported")
		}
		d.check(t)
		if after, _ := d.Index(); after == before {
			t.Error("the index is the old one")
		}
		if got := d.configure(t, peers...); got != (Changes{Added: 3}) {
			t.Errorf("peers after that: %+v, want 3 added", got)
		}
	})
}

func TestEnsureReplacesARenamedLink(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		d.ensure(t)
		l := mustFind(t, d.Name())
		if err := errors.Join(netlink.LinkSetDown(l.ref()), netlink.LinkSetName(l.ref(), "renamed")); err != nil {
			t.Fatal(err)
		}
		d.ensure(t)
		d.check(t)
		if _, err := findLink("renamed"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the renamed link: %v, want it gone", err)
		}
	})
}

func TestEnsureRefusesForeignLinks(t *testing.T) {
	foreign := map[string]func(name string) error{
		"a bridge": func(name string) error {
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
		},
		"a bridge with our alias": func(name string) error {
			bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
			return errors.Join(netlink.LinkAdd(bridge), netlink.LinkSetAlias(bridge, Alias("gcp")))
		},
		"a TUN without alias":      func(name string) error { return foreignTUN(name, "") },
		"a TUN of another's":       func(name string) error { return foreignTUN(name, "openvpn") },
		"a TUN of another remote":  func(name string) error { return foreignTUN(name, Alias("aws")) },
		"a TAP, which isn't a TUN": foreignTAP,
	}
	eachBackend(t, func(t *testing.T, backend string) {
		for what, create := range foreign {
			t.Run(what, func(t *testing.T) {
				cfg := config(t, "gcp", backend)
				if err := create(cfg.Name); err != nil {
					t.Fatal(err)
				}
				before := mustFind(t, cfg.Name)
				d := open(t, cfg)
				_, err := d.Ensure(t.Context())
				if err == nil || !strings.Contains(err.Error(), cfg.Name) || !strings.Contains(err.Error(), before.kind) {
					t.Errorf("got %v, want an error that names %s and its kind", err, cfg.Name)
				}
				if err := d.Remove(t.Context()); err == nil {
					t.Error("Remove takes it for ours")
				}
				if diff := cmp.Diff(before, mustFind(t, cfg.Name), cmp.AllowUnexported(link{})); diff != "" {
					t.Errorf("the foreign link was changed:\n%s", diff)
				}
			})
		}
	})
}

func foreignTUN(name, alias string) error {
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI}
	if err := netlink.LinkAdd(tun); err != nil {
		return err
	}
	if alias == "" {
		return nil
	}
	return netlink.LinkSetAlias(tun, alias)
}

func foreignTAP(name string) error {
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP}
	return errors.Join(netlink.LinkAdd(tap), netlink.LinkSetAlias(tap, Alias("gcp")))
}

func TestARestartTakesOverTheLink(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		cfg := config(t, "gcp", backend)
		first := open(t, cfg)
		first.ensure(t)
		first.configure(t, thousands(3)...)
		index, _ := first.Index()
		subnet := netsOf([]netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")})
		route := &netlink.Route{LinkIndex: index, Dst: &subnet[0], Scope: netlink.SCOPE_LINK}
		if err := netlink.RouteAdd(route); err != nil {
			t.Fatal(err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}

		cfg.ListenPort, cfg.MTU = 51900, 1380
		second := open(t, cfg)
		second.ensure(t)
		second.check(t)
		if got, _ := second.Index(); got != index {
			t.Errorf("index %d, want that of the first run, %d", got, index)
		}
		if second.PublicKey() != first.PublicKey() {
			t.Error("the key changed")
		}
		routes, err := netlink.RouteList(mustFind(t, cfg.Name).ref(), netlink.FAMILY_V4)
		if err != nil || len(routes) != 1 {
			t.Errorf("routes after the restart: %v, %v", routes, err)
		}
		if got := second.configure(t, thousands(3)...); got.Any() {
			t.Errorf("peers after the restart: %+v, want no change", got)
		}
	})
}

func TestTheOtherBackendsLinkIsReplaced(t *testing.T) {
	needKernel(t)
	cfg := config(t, "gcp", Kernel)
	for _, backend := range []string{Kernel, Userspace, Auto, Userspace, Kernel} {
		cfg.Backend = backend
		d := open(t, cfg)
		d.ensure(t)
		d.check(t)
		d.configure(t, thousands(2)...)
		want := backend
		if backend == Auto {
			want = Kernel
		}
		if got := d.status(t).Backend; got != want {
			t.Errorf("backend %s is served by %s", backend, got)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestBackendChoice(t *testing.T) {
	nstest.Namespaces(t)
	kernel, err := Supported()
	if err != nil {
		t.Fatal(err)
	}
	auto := open(t, config(t, "gcp", Auto))
	auto.ensure(t)
	want := map[bool]string{true: Kernel, false: Userspace}[kernel]
	if got := auto.status(t).Backend; got != want {
		t.Errorf("auto chose %s, want %s", got, want)
	}
	if kernel {
		return
	}
	forced := open(t, config(t, "aws", Kernel))
	if _, err := forced.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "backend") {
		t.Errorf("got %v, want an error that names the setting", err)
	}
	if _, err := findLink(forced.Name()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it left a link: %v", err)
	}
}
