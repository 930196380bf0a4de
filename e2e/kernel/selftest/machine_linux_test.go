package selftest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// inMachine skips a test everywhere but in the emulated machine: here it would
// judge the kernel of the machine that runs them.
func inMachine(t *testing.T) {
	t.Helper()
	if os.Getenv("SEMAPHORE_TEST_KERNEL") == "" {
		t.Skip("a test of the emulated machine: run make test-kernel")
	}
}

// A test binary that finds roleVariable in its environment isn't a test but
// plays a part in one.
const (
	roleVariable = "SELFTEST_ROLE"
	roleParent   = "parent"
	roleOrphan   = "orphan"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case roleParent:
		orphan := exec.Command(os.Args[0])
		orphan.Env = append(os.Environ(), roleVariable+"="+roleOrphan)
		orphan.Stdin = os.Stdin
		if err := orphan.Start(); err != nil {
			panic(err)
		}
		fmt.Print(orphan.Process.Pid)
	case roleOrphan:
		_, _ = io.Copy(io.Discard, os.Stdin)
	default:
		os.Exit(m.Run())
	}
}

func TestLinksOfEveryNeededKindAreMade(t *testing.T) {
	inMachine(t)
	for _, kind := range []string{"wireguard", "veth", "bridge"} {
		t.Run(kind, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				attrs := netlink.NewLinkAttrs()
				attrs.Name = "test0"
				if err := netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind}); err != nil {
					t.Fatal(err)
				}
				link, err := netlink.LinkByName("test0")
				if err != nil {
					t.Fatal(err)
				}
				if link.Type() != kind {
					t.Errorf("link has type %s", link.Type())
				}
				if err := netlink.LinkSetUp(link); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestTUNDeviceOpens(t *testing.T) {
	inMachine(t)
	nstest.Run(t, func(t *testing.T) {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		request, err := unix.NewIfreq("tun0")
		if err != nil {
			t.Fatal(err)
		}
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			t.Fatal(err)
		}
		if _, err := netlink.LinkByName("tun0"); err != nil {
			t.Error(err)
		}
	})
}

func TestWireGuardIsConfigured(t *testing.T) {
	inMachine(t)
	nstest.Run(t, func(t *testing.T) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "wg0"
		if err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
		client, err := wgctrl.New()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		key, err := wgtypes.GeneratePrivateKey()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.ConfigureDevice("wg0", wgtypes.Config{PrivateKey: &key}); err != nil {
			t.Fatal(err)
		}
		device, err := client.Device("wg0")
		if err != nil {
			t.Fatal(err)
		}
		if device.Type != wgtypes.LinuxKernel || device.PublicKey != key.PublicKey() {
			t.Errorf("device is of type %v with key %v, want the kernel's with %v", device.Type, device.PublicKey, key.PublicKey())
		}
	})
}

// TestClockIsRight matters to handshakes: WireGuard refuses one whose time
// stamp isn't later than the last.
func TestClockIsRight(t *testing.T) {
	inMachine(t)
	if year := time.Now().Year(); year < 2024 || year > 2100 {
		t.Errorf("the year is %d", year)
	}
}

func TestEntropyIsThere(t *testing.T) {
	inMachine(t)
	if _, err := unix.Getrandom(make([]byte, 32), unix.GRND_NONBLOCK); err != nil {
		t.Errorf("the machine is short of entropy and would hang where keys are made: %v", err)
	}
}

func TestFoldersAreWritable(t *testing.T) {
	inMachine(t)
	for _, dir := range []string{"/tmp", "/run", "/var/run", "/var/lib", "/dev/shm"} {
		file := filepath.Join(dir, "selftest")
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			t.Error(err)
			continue
		}
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	}
	if link, err := os.Readlink("/var/run"); err != nil || link != "/run" {
		t.Errorf("/var/run leads to %q, %v; want /run, as on ordinary systems", link, err)
	}
}

func TestLoopbackIsUp(t *testing.T) {
	inMachine(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if lo.Attrs().RawFlags&unix.IFF_UP == 0 {
		t.Error("lo is down")
	}
}

// TestOrphansAreCollected leaves a process without a parent: process 1 must
// take it, or tests that wait for the end of a process would wait for ever.
func TestOrphansAreCollected(t *testing.T) {
	inMachine(t)
	stdin, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), roleVariable+"="+roleParent)
	parent.Stdin = stdin
	out, err := parent.Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(string(out))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(orphan, 0); err != nil {
		t.Fatalf("the orphan is gone before its time: %v", err)
	}
	// The end of its input ends the orphan.
	if err := hold.Close(); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !errors.Is(unix.Kill(orphan, 0), unix.ESRCH) {
		select {
		case <-deadline:
			t.Fatalf("process %d ended and wasn't reaped", orphan)
		case <-poll.C:
		}
	}
}
