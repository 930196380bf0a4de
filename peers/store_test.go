package peers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func remember(n int) Remembered { return Remembered{*node(n), peer(n).AllowedIPs} }

func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := NewStore(dir, "wireguard.gcp", "gcp")
	if nodes, err := s.Load(); err != nil || nodes != nil {
		t.Fatalf("nothing stored yet: %v, %v", nodes, err)
	}
	want := []Remembered{remember(1), remember(2)}
	if err := s.Save([]Remembered{remember(2), remember(1)}); err != nil {
		t.Fatal(err)
	}
	got, err := NewStore(dir, "wireguard.gcp", "gcp").Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, comparers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("beside the file there is something else: %v, %v", entries, err)
	}
	if err := s.Remove(); err != nil {
		t.Error(err)
	}
	if err := s.Remove(); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
}

func TestStoreWritesOnlyChanges(t *testing.T) {
	dir := t.TempDir()
	s := NewStore(dir, "wireguard.gcp", "gcp")
	if err := s.Save([]Remembered{remember(1)}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "wireguard.gcp.peers.json")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := s.Save([]Remembered{remember(1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Error("the same nodes were written again")
	}
	if err := s.Save([]Remembered{remember(2)}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("other nodes were not written: %v", err)
	}
}

func TestInvalidStores(t *testing.T) {
	for name, data := range map[string]string{
		"empty":           ``,
		"half-written":    `{"version":1,"cluster":"gcp","nodes":[{"na`,
		"another version": `{"version":2,"cluster":"gcp"}`,
		"another cluster": `{"version":1,"cluster":"merit"}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "wireguard.gcp.peers.json")
			if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			s := NewStore(dir, "wireguard.gcp", "gcp")
			if nodes, err := s.Load(); err == nil || nodes != nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, %v; want an error that names %s", nodes, err, path)
			}
			if err := s.Save([]Remembered{remember(1)}); err != nil {
				t.Error(err)
			}
			if nodes, err := s.Load(); err != nil || len(nodes) != 1 {
				t.Errorf("after a save: %v, %v", nodes, err)
			}
		})
	}
}

func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"version":1,"cluster":"gcp","nodes":[{"name":"a","podCIDRs":["10.4.0.0/24"]}]}`))
	f.Add([]byte(`{"version":1,"cluster":"gcp","nodes":[{"name":"a","podCIDRs":["10.4.0.0/24"],"accepted":["10.4.0.0/24","10.4.0.7/32"]}]}`))
	f.Add([]byte(`{"version":1,"cluster":"gcp","nodes":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		last, err := parseStored(data, "gcp")
		if err != nil {
			return
		}
		nodes, accepted := recall(last)
		peers, _, _ := DesiredAfter(accepted, nodes, rules)
		checkPeers(t, peers, rules)
	})
}

func TestUnfinishedStoresAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"wireguard.gcp.peers.json", "wireguard.gcp.peers.json.new", "wireguard.gcp.key.new"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{filepath.Join(dir, "wireguard.gcp.peers.json.new")}
	removed, err := RemoveUnfinished(dir)
	if diff := cmp.Diff(want, removed); diff != "" || err != nil {
		t.Errorf("%v, removed (-want +got):\n%s", err, diff)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestStoresOfOtherDevicesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"wireguard.gcp", "wireguard.merit", "wg.old.012345"} {
		if err := NewStore(dir, name, name).Save([]Remembered{{Node: *node(1)}}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".key"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	forgotten, err := Forget(dir, func(device string) bool { return device == "wireguard.gcp" })
	if want := []string{"wg.old.012345", "wireguard.merit"}; err != nil || !slices.Equal(forgotten, want) {
		t.Errorf("Forget() = %v, %v, want %v", forgotten, err, want)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"wg.old.012345.key", "wireguard.gcp.key", "wireguard.gcp.peers.json", "wireguard.merit.key"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left are %v, %v, want %v", left, err, want)
	}
	if forgotten, err := Forget(filepath.Join(dir, "none"), func(string) bool { return false }); err != nil || len(forgotten) > 0 {
		t.Errorf("of no folder: %v, %v", forgotten, err)
	}
}
