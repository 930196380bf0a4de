package tunnel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	nstest.Namespaces(t)
	dir := t.TempDir()
	const long = "a-very-long-name"
	ours := []string{
		filepath.Join(dir, DeviceName("gcp")+".key.new"),
		filepath.Join(dir, DeviceName(long)+".key.new"),
	}
	theirs := []string{
		filepath.Join(dir, DeviceName("gcp")+".key"),
		filepath.Join(dir, DeviceName("gcp")+".key.bad-1"),
		filepath.Join(dir, "other.key.new"),
		filepath.Join(dir, "wireguard.gcp.new"),
	}
	for _, path := range append(slices.Clone(theirs), ours...) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		writeTestFile(t, path, "x", 0o600)
	}

	removed, err := RemoveUnfinished(dir)
	if diff := cmp.Diff(ours, removed); diff != "" || err != nil {
		t.Errorf("%v, removed (-want +got):\n%s", err, diff)
	}
	for _, path := range ours {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", path, err)
		}
	}
	for _, path := range theirs {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s: %v, want it to stay", path, err)
		}
	}
	if removed, err := RemoveUnfinished(dir); len(removed) > 0 || err != nil {
		t.Errorf("a second call: %v, %v", removed, err)
	}
}

func TestAProbeThatAnEarlierRunLeftIsRemoved(t *testing.T) {
	needKernel(t)
	key := newPrivateKey()
	for name, test := range map[string]struct {
		change func(l link) error
		want   bool
	}{
		"as it was created": {func(link) error { return nil }, true},
		"up":                {func(l link) error { return netlink.LinkSetUp(l.ref()) }, false},
		"with an alias":     {func(l link) error { return l.setAlias("uplink") }, false},
		"with a key": {func(l link) error {
			secret := wgtypes.Key(key.reveal())
			return protocol{}.ConfigureDevice(l.name, wgtypes.Config{PrivateKey: &secret})
		}, false},
		"of another kind": {func(l link) error {
			return errors.Join(l.remove(), netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: probeName}}))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := createKernelLink(probeName, 1420); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if l, err := findLink(probeName); err == nil {
					_ = l.remove()
				}
			})
			if err := test.change(mustFind(t, probeName)); err != nil {
				t.Fatal(err)
			}
			removed, err := RemoveProbe()
			if removed != test.want || err != nil {
				t.Errorf("removed: %v, %v, want %v", removed, err, test.want)
			}
			if _, err := findLink(probeName); errors.Is(err, os.ErrNotExist) != test.want {
				t.Errorf("the link: %v", err)
			}
		})
	}
	if removed, err := RemoveProbe(); removed || err != nil {
		t.Errorf("without a link: removed %v, %v", removed, err)
	}
}
