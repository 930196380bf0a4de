package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// ErrPortTaken is wrapped by Ensure's error while the listen port is taken.
var ErrPortTaken = errors.New("listen port is taken")

// Ports lets the devices of one process exchange listen ports after a change of the
// configuration: each may want the port that another one still has. Their wanted ports
// differ. The zero value is ready to use.
type Ports struct {
	mu      sync.Mutex // held while a device takes its port
	devices sync.Map   // of *Device by name
}

// park moves a device of ours to a port chosen by the kernel, where its sessions go on: its
// peers follow the first packet from there. It is notified to take its own port. The caller
// holds p.mu.
func (p *Ports) park(c controller, name string) error {
	free := 0
	if err := c.ConfigureDevice(name, wgtypes.Config{ListenPort: &free}); err != nil {
		return fmt.Errorf("move device %s to another listen port: %w", name, explain(err))
	}
	if found, known := p.devices.Load(name); known {
		other := found.(*Device)
		other.port.Store(0) // not known until its next Ensure
		other.parked.Store(true)
		other.wake()
	}
	return nil
}

// ListenPort returns the UDP port that the device listens on at the last [Device.Ensure];
// false before that. It differs from the configured one while that is taken.
func (d *Device) ListenPort() (int, bool) {
	port := int(d.port.Load())
	return port, port != 0
}

// takePort makes the device listen on its configured port. Another device of ours with that
// port is moved away. If the port is taken otherwise, the device listens on another one, and
// taken is an error that says by what. up is whether the link is up: a kernel device that is
// down has no socket, although it reports a port.
func (d *Device) takePort(ctx context.Context, up bool) (changed bool, taken, err error) {
	d.cfg.Ports.mu.Lock()
	defer d.cfg.Ports.mu.Unlock()
	found, err := d.control.Device(d.cfg.Name)
	if err != nil {
		return false, nil, fmt.Errorf("read device: %w", explain(err))
	}
	free, device, ours := d.portFree(ctx), "", false
	if !free {
		if device, ours, err = d.portHolder(ctx); err != nil {
			d.log.Debug("finding the device with the listen port failed", "err", err)
		}
	}
	switch {
	case free:
	case ours:
		if err := d.cfg.Ports.park(d.control, device); err != nil {
			return false, nil, err
		}
		d.log.Info("moved another device of ours to another listen port", "listen_port", d.cfg.ListenPort, "moved", device)
		changed = true
	default:
		holder := fmt.Sprintf("another program of this host, see 'ss -ulnp sport = :%d' there", d.cfg.ListenPort)
		if device != "" {
			holder = "the WireGuard device " + printable.Text(device, printable.Short)
		}
		instead := 0
		if up {
			instead = found.ListenPort
		}
		if instead == 0 {
			if err := d.listen(0); err != nil {
				return changed, nil, err
			}
			changed = true
		}
		return changed, fmt.Errorf("%w: %d by %s", ErrPortTaken, d.cfg.ListenPort, holder), nil
	}
	if err := d.listen(d.cfg.ListenPort); err != nil {
		// wireguard-go has closed the socket that it had.
		d.port.Store(0)
		again := d.listen(found.ListenPort)
		if again != nil {
			again = d.listen(0)
		}
		return changed, nil, errors.Join(err, again)
	}
	d.port.Store(int64(d.cfg.ListenPort))
	d.log.Info("configured device", "listen_port", d.cfg.ListenPort)
	return true, nil, nil
}

// portHolder returns another WireGuard device of this host that listens on the device's port, and
// whether it has an alias of ours; empty: none does.
func (d *Device) portHolder(ctx context.Context) (device string, ours bool, err error) {
	links, err := findLinks(ctx, func(l link) bool {
		_, ours := remoteOf(l.alias)
		return l.name != d.cfg.Name && l.up && (l.backend == Kernel || ours && l.backend == Userspace)
	})
	for _, l := range links {
		if found, err := d.control.Device(l.name); err == nil && found.ListenPort == d.cfg.ListenPort {
			_, ours = remoteOf(l.alias)
			return l.name, ours, nil
		}
	}
	return "", false, err
}

// portFree reports whether the device's port can be had. wireguard-go would close the socket that it
// has before it finds out.
func (d *Device) portFree(ctx context.Context) bool {
	socket, err := new(net.ListenConfig).ListenPacket(ctx, "udp", ":"+strconv.Itoa(d.cfg.ListenPort))
	if err == nil {
		_ = socket.Close() // unused
	}
	return !errors.Is(err, unix.EADDRINUSE)
}

// listen sets the device's listen port; 0: chosen by the kernel.
func (d *Device) listen(port int) error {
	if err := d.control.ConfigureDevice(d.cfg.Name, wgtypes.Config{ListenPort: &port}); err != nil {
		return fmt.Errorf("set listen port %d: %w", port, explain(err))
	}
	return nil
}

// learnPort records the port that the device listens on instead of its own, and adds it to
// the error.
func (d *Device) learnPort(taken error) error {
	found, err := d.control.Device(d.cfg.Name)
	if err != nil {
		return errors.Join(taken, fmt.Errorf("read device: %w", explain(err)))
	}
	d.port.Store(int64(found.ListenPort))
	return fmt.Errorf("%w; listening on %d until it is free", taken, found.ListenPort)
}
