package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Config describes a Device. Only Mark, MTU, Engine and Ports are optional.
type Config struct {
	Name       string // see [DeviceName]
	Alias      string // see [Alias]
	KeyPath    string // directory of the private key files
	Backend    string // Auto, Kernel or Userspace
	ListenPort int    // UDP, 1 to 65535
	Mark       uint32 // firewall mark of the encrypted packets; 0: none
	MTU        int    // of the link in bytes, 576 to 65535; 0: see [Device.SetMTU]
	Engine     string // program to start when no engine runs; empty: one has to run
	Ports      *Ports // shared with the other devices of this process; nil: none
	Logger     *slog.Logger
}

// Device is a WireGuard device. It is safe for concurrent use; methods that change the
// device are serialized, reading it isn't.
type Device struct {
	cfg     Config
	log     *slog.Logger
	control *timeoutController
	now     func() time.Time

	notify atomic.Pointer[func()]
	key    atomic.Pointer[keyPair] // nil: not known
	index  atomic.Int64            // 0: not known
	port   atomic.Int64            // current listen port; 0: not known
	parked atomic.Bool             // another device of ours took its port
	mtu    atomic.Int64            // wanted; 0: any
	marked atomic.Bool             // its packets have the mark, see [Device.Marked]

	mu           sync.Mutex // guards what follows
	backend      string     // empty before the first Ensure
	engine       *engine    // nil with the kernel backend, or when not connected
	stopAwaiting func()     // stops waiting for an engine; nil: not waiting
	checked      time.Time  // when key and port were last compared; zero: due
	peers        peerState
	closed       bool
}

// keyPair is a private key with its public key.
type keyPair struct {
	private PrivateKey
	public  Key
}

// Open reads or creates the device's private key. An unusable key file is an error of [Device.Ensure], which
// reads it again. Open touches no link.
func Open(cfg Config) *Device {
	d := &Device{
		cfg:     cfg,
		log:     cfg.Logger.With("device", cfg.Name),
		control: newTimeoutController(protocol{}, requestTimeout),
		now:     time.Now,
	}
	// Ensure returns the error.
	_, _ = d.identity()
	if d.cfg.Ports == nil {
		d.cfg.Ports = new(Ports)
	}
	d.cfg.Ports.devices.Store(cfg.Name, d)
	d.mtu.Store(int64(cfg.MTU))
	d.peers = peerState{
		name:      cfg.Name,
		control:   d.control,
		now:       func() time.Time { return d.now() },
		published: make(map[Key]netip.AddrPort),
	}
	return d
}

// Name returns the name of the device's link.
func (d *Device) Name() string { return d.cfg.Name }

// PublicKey returns the device's public key; zero while the key file can't be used.
func (d *Device) PublicKey() Key {
	if key := d.key.Load(); key != nil {
		return key.public
	}
	return Key{}
}

// identity returns the device's keys, reading or creating them if needed. After Open, the
// caller holds d.mu.
func (d *Device) identity() (*keyPair, error) {
	if key := d.key.Load(); key != nil {
		return key, nil
	}
	private, err := loadKey(d.cfg.KeyPath, d.cfg.Name, d.cfg.Logger)
	if err != nil {
		return nil, err
	}
	key := &keyPair{private: private, public: private.Public()}
	d.key.Store(key)
	return key, nil
}

// Index returns the link's ifindex at the last [Device.Ensure]; false before that.
func (d *Device) Index() (int, bool) {
	index := int(d.index.Load())
	return index, index != 0
}

// Marked reports whether the device sends its packets with the configured mark, as far as
// [Device.Ensure] knows. False without a mark.
func (d *Device) Marked() bool { return d.marked.Load() && d.cfg.Mark != 0 }

// Notify sets a function that is called, on any goroutine, when [Device.Ensure] is needed:
// the link is no longer served, an engine has started, or another device of ours took the
// listen port. It must not block.
func (d *Device) Notify(f func()) { d.notify.Store(&f) }

// SetMTU sets the MTU in bytes that [Device.Ensure] applies. Before the first call and
// without a configured MTU, an existing link keeps its MTU, and a new one gets
// [DefaultMTU].
func (d *Device) SetMTU(mtu int) { d.mtu.Store(int64(mtu)) }

// RestoreEndpoints sets the endpoints that an earlier process had applied, so that peers
// that have roamed since keep their current ones. It takes effect with the next full
// comparison; call it before the first [Device.Configure].
func (d *Device) RestoreEndpoints(endpoints map[Key]netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, endpoint := range endpoints {
		d.peers.published[key] = unmap(endpoint)
	}
}

// Configure makes the device's peers exactly those wanted, in any order. It writes only
// differences, so the sessions of other peers go on.
//
// An endpoint is written when the wanted one has changed since it was last written, not
// when the peer roamed. Peers without a key or listed twice, and allowed IPs of two peers,
// are an error before anything is written.
//
// The difference is computed from what was written before. The device itself is read at
// the first call, after any error, after its link was recreated and every 30 s. The error
// wraps os.ErrNotExist when the device doesn't exist.
func (d *Device) Configure(ctx context.Context, want []Peer) (Changes, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	want, err := normalize(want, d.PublicKey(), d.peers.applied)
	if err != nil {
		return Changes{}, fmt.Errorf("configure device %s: %w", d.cfg.Name, err)
	}
	if !d.serving() {
		return Changes{}, fmt.Errorf("configure device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	changes, err := d.peers.configure(ctx, want)
	if err != nil {
		return changes, fmt.Errorf("configure device %s: %w", d.cfg.Name, err)
	}
	if changes.Any() {
		d.log.Debug("configured peers", "added", changes.Added, "updated", changes.Updated, "removed", changes.Removed)
	}
	return changes, nil
}

// serving reports whether the device is known to exist. The caller holds d.mu.
func (d *Device) serving() bool {
	return d.backend == Kernel || d.engine != nil && d.engine.alive()
}

// Status reads link and device. The error wraps os.ErrNotExist when one of them doesn't
// exist. It returns when ctx ends, even if the device hangs.
func (d *Device) Status(ctx context.Context) (Status, error) {
	if err := ctx.Err(); err != nil {
		return Status{}, fmt.Errorf("read device %s: %w", d.cfg.Name, err)
	}
	l, err := findLink(d.cfg.Name)
	if err != nil {
		return Status{}, fmt.Errorf("read device %s: %w", d.cfg.Name, err)
	}
	found, err := d.control.read(ctx, d.cfg.Name)
	if err != nil {
		return Status{}, fmt.Errorf("read device %s: %w", d.cfg.Name, explain(err))
	}
	return Status{
		Name:       l.name,
		Index:      l.index,
		Backend:    l.backend,
		PublicKey:  publicKeyOf(found),
		ListenPort: found.ListenPort,
		MTU:        l.mtu,
		Peers:      peersOf(found),
	}, nil
}

// Close disconnects from the device, which goes on working.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.cfg.Ports.devices.CompareAndDelete(d.cfg.Name, d)
	d.disconnect()
	return nil
}

// Remove closes the device and deletes its link and socket, but not the private key file,
// see [Remove].
func (d *Device) Remove(ctx context.Context) error {
	if err := d.Close(); err != nil {
		return err
	}
	return d.Delete(ctx)
}

// Delete deletes the link and its socket like Remove, but doesn't close the device: Ensure
// creates it again.
func (d *Device) Delete(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.disconnect()
	d.index.Store(0)
	d.port.Store(0)
	d.marked.Store(false)
	d.checked = time.Time{}
	l, err := findLink(d.cfg.Name)
	if err != nil {
		return Remove(ctx, d.cfg.Name, d.cfg.Alias)
	}
	// The link may be ours by its key, without the alias that Remove checks.
	ours, err := d.owns(l)
	switch {
	case err != nil:
		return fmt.Errorf("remove device %s: %w", d.cfg.Name, err)
	case ours && l.alias != d.cfg.Alias:
		if err := l.setAlias(d.cfg.Alias); err != nil {
			return fmt.Errorf("remove device %s: %w", d.cfg.Name, err)
		}
	}
	return Remove(ctx, d.cfg.Name, d.cfg.Alias)
}
