package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a device is made of. Nothing in it has a default but the MTU,
// Engine and Ports.
type Config struct {
	Name       string // see [DeviceName]
	Alias      string // see [Alias]
	KeyPath    string // directory of the private key files
	Backend    string // Auto, Kernel or Userspace
	ListenPort int    // UDP, 1 to 65535
	MTU        int    // of the link in bytes, 576 to 65535; 0: see [Device.SetMTU]
	Engine     string // program to start where no engine answers; empty: one has to be there
	Ports      *Ports // shared with the other devices of this process; nil: there are none
	Logger     *slog.Logger
}

func (c Config) check() error {
	var errs []error
	if err := checkLinkName(c.Name); err != nil {
		errs = append(errs, err)
	}
	if c.Alias == "" {
		errs = append(errs, errors.New("alias is empty"))
	}
	if c.KeyPath == "" {
		errs = append(errs, errors.New("key path is empty"))
	}
	if err := checkBackend(c.Backend); err != nil {
		errs = append(errs, err)
	}
	if c.ListenPort < 1 || c.ListenPort > 65535 {
		errs = append(errs, fmt.Errorf("listen port %d is not between 1 and 65535", c.ListenPort))
	}
	// RFC 791: every host takes 576 bytes. IPv6 asks for 1280, but a device
	// may carry IPv4 only.
	if c.MTU != 0 && (c.MTU < 576 || c.MTU > 65535) {
		errs = append(errs, fmt.Errorf("MTU %d is not between 576 and 65535", c.MTU))
	}
	return errors.Join(errs...)
}

// Device is a WireGuard device. Its methods may be called by several goroutines
// at once; those that change the device wait for each other, reading it doesn't.
type Device struct {
	cfg     Config
	log     *slog.Logger
	control *patient
	now     func() time.Time

	notify atomic.Pointer[func()]
	key    atomic.Pointer[keyPair] // nil: not known
	index  atomic.Int64            // 0: not known
	port   atomic.Int64            // that it listens on; 0: not known
	parked atomic.Bool             // another device took its port
	mtu    atomic.Int64            // wanted; 0: any

	mu        sync.Mutex // guards what follows
	backend   string     // the one chosen; empty before the first Ensure
	engine    *engine    // nil with the kernel backend, or when not connected
	expecting func()     // ends the wait for an engine; nil: there is none
	checked   time.Time  // when the key and port were last compared; zero: due
	peers     peerState
	closed    bool
}

// keyPair is a private key and what belongs to it.
type keyPair struct {
	private PrivateKey
	public  Key
}

// Open checks the configuration and reads the device's private key, or creates
// one. A key file that can't be used is no error yet: [Device.Ensure] reads it
// again. Open touches no link.
func Open(cfg Config) (*Device, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("open device %s: %w", cfg.Name, err)
	}
	d := &Device{
		cfg:     cfg,
		log:     cfg.Logger.With("device", cfg.Name),
		control: newPatient(protocol{}, answerLimit),
		now:     time.Now,
	}
	// Ensure tells what is wrong with the key.
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
	return d, nil
}

// Name returns the name of the device's link.
func (d *Device) Name() string { return d.cfg.Name }

// PublicKey returns the key by which the other side knows this device; zero while
// the key file can't be used.
func (d *Device) PublicKey() Key {
	if key := d.key.Load(); key != nil {
		return key.public
	}
	return Key{}
}

// identity returns the device's keys, and reads or creates them when they aren't
// known. After Open, the caller holds d.mu.
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

// Index returns the link's ifindex as [Device.Ensure] last saw it, and false
// before that.
func (d *Device) Index() (int, bool) {
	index := int(d.index.Load())
	return index, index != 0
}

// Notify sets a function that is called, on any goroutine, when the device wants
// [Device.Ensure]: its link isn't served any more, an engine answers where none did, or
// another device of ours took its listen port. It must not block.
func (d *Device) Notify(f func()) { d.notify.Store(&f) }

// SetMTU sets what [Device.Ensure] makes the link's MTU from now on, in bytes.
// Without a configured MTU and before the first call, a link keeps the one that it
// has, and a new one gets [DefaultMTU].
func (d *Device) SetMTU(mtu int) { d.mtu.Store(int64(mtu)) }

// Published tells the device which endpoints an earlier process had applied.
// Peers that roamed since then keep where they are now. It takes effect with
// the next full comparison and is meant to be called before the first
// [Device.Configure].
func (d *Device) RestoreEndpoints(endpoints map[Key]netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key, endpoint := range endpoints {
		d.peers.published[key] = unmap(endpoint)
	}
}

// Configure makes the device's peers exactly those wanted, in any order. It
// sends what differs and nothing else, so the sessions of other peers go on.
//
// An endpoint is written when the wanted one has changed since it was last
// written, and not when the peer roamed. Peers without a key or listed twice,
// and allowed IPs that two peers claim, are an error before anything is
// written.
//
// What differs is found by comparing with what was written before; the device
// itself is read at the first call, after any error, after its link was made
// anew and every 30 s. The error wraps os.ErrNotExist when the device is gone.
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

// serving reports whether there is a device to configure, as far as we know. The
// caller holds d.mu.
func (d *Device) serving() bool {
	return d.backend == Kernel || d.engine != nil && d.engine.alive()
}

// Status reads link and device. The error wraps os.ErrNotExist when one of them
// is gone. It returns when ctx ends, also when the device doesn't answer.
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

// Close ends what this process does about the device, which goes on working.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.cfg.Ports.devices.CompareAndDelete(d.cfg.Name, d)
	d.disconnect()
	return nil
}

// Remove closes the device and deletes its link and socket. The private key
// file stays, see [Remove].
func (d *Device) Remove(ctx context.Context) error {
	if err := d.Close(); err != nil {
		return err
	}
	return d.Delete(ctx)
}

// Delete deletes the link and its socket, as Remove does, but doesn't close the
// device: Ensure makes it anew.
func (d *Device) Delete(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.disconnect()
	d.index.Store(0)
	d.port.Store(0)
	d.checked = time.Time{}
	l, err := findLink(d.cfg.Name)
	if err != nil {
		return Remove(ctx, d.cfg.Name, d.cfg.Alias)
	}
	// More than the alias says that a link is ours: the key does as well.
	ours, err := d.owns(l)
	switch {
	case err != nil:
		return fmt.Errorf("remove device %s: %w", d.cfg.Name, err)
	case ours && l.alias != d.cfg.Alias:
		if err := l.mark(d.cfg.Alias); err != nil {
			return fmt.Errorf("remove device %s: %w", d.cfg.Name, err)
		}
	}
	return Remove(ctx, d.cfg.Name, d.cfg.Alias)
}
