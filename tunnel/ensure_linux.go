package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// Ensure reconciles the link: its existence, backend, alias, key, firewall mark, listen port
// and MTU, and that it is up. It does nothing before it has the key. It creates a missing link, takes
// over one of an earlier run, and replaces one of an earlier run with the other backend. A
// foreign link of that name is an error and is left alone.
//
// A link is ours when it has our alias, or when we serve it. A kernel WireGuard link is ours
// too when it has our private key, as the original tool leaves it, or no alias, no key and
// no peers, as a crash right after its creation leaves it.
//
// A listen port of another device of ours is moved to this one. A listen port that is taken
// otherwise is an [ErrPortTaken], returned after everything else was done: the
// device listens on another port meanwhile, see [Device.ListenPort], and takes its own with
// the first call that finds it free.
//
// changed reports whether something was changed. Link attributes are compared each time,
// key, mark and listen port after any change, any error, and every 30 s.
func (d *Device) Ensure(ctx context.Context) (changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed, err = d.ensure(ctx)
	if err != nil {
		d.checked = time.Time{}
		return changed, fmt.Errorf("ensure device %s: %w", d.cfg.Name, err)
	}
	return changed, nil
}

func (d *Device) ensure(ctx context.Context) (changed bool, err error) {
	if d.closed {
		return false, os.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if _, err := d.identity(); err != nil {
		return false, err
	}
	if err := d.chooseBackend(); err != nil {
		return false, err
	}
	l, claimed, err := d.claim(ctx)
	if err != nil {
		return claimed, err
	}
	if d.backend == Kernel {
		changed, err = d.ensureKernel(ctx, &l)
	} else {
		changed, err = d.ensureUserspace(ctx, &l)
	}
	changed = changed || claimed
	// A device with another listen port, or one of the kernel, works despite the error.
	if err != nil && !errors.Is(err, ErrPortTaken) && (d.backend != Kernel || l.index == 0) {
		return changed, err
	}
	if d.index.Swap(int64(l.index)) != int64(l.index) {
		// A new link: peers have not been configured on it.
		d.peers.invalidate()
	}
	return changed, err
}

// chooseBackend sets the backend, once.
func (d *Device) chooseBackend() error {
	if d.backend != "" {
		return nil
	}
	backend := d.cfg.Backend
	if backend == Auto {
		kernel, err := Supported()
		if err != nil {
			return err
		}
		backend = Userspace
		if kernel {
			backend = Kernel
		}
	}
	d.backend = backend
	d.log.Info("chose backend", "backend", backend, "wanted", d.cfg.Backend)
	return nil
}

// claim returns our link of the chosen backend; the zero link if it doesn't exist. A foreign
// link of that name is an error. Conflicting links of ours are removed.
func (d *Device) claim(ctx context.Context) (l link, changed bool, err error) {
	l, err = findLink(d.cfg.Name)
	if errors.Is(err, os.ErrNotExist) {
		changed, err = d.removeStrays(ctx)
		return link{}, changed, err
	}
	if err != nil {
		return link{}, false, err
	}
	ours, err := d.owns(l)
	switch {
	case err != nil:
		return link{}, false, err
	case !ours:
		return link{}, false, foreign(l)
	case l.backend != d.backend:
		d.disconnect()
		if err := errors.Join(unserve(ctx, d.cfg.Name), l.remove()); err != nil {
			return link{}, false, err
		}
		d.log.Info("removed link of the other backend", "backend", l.backend)
		return link{}, true, nil
	case l.alias != d.cfg.Alias:
		if err := l.setAlias(d.cfg.Alias); err != nil {
			return link{}, false, err
		}
		d.log.Info("marked link as ours", "alias_before", l.alias)
		changed = true
	}
	return l, changed, nil
}

// owns applies the rule that [Device.Ensure] documents.
func (d *Device) owns(l link) (bool, error) {
	switch {
	case l.alias == d.cfg.Alias:
		return l.backend != "", nil
	case l.backend == Userspace:
		return d.engine != nil && d.engine.index == l.index, nil
	case l.backend != Kernel:
		return false, nil
	}
	found, err := d.control.Device(l.name)
	if err != nil {
		return false, fmt.Errorf("read device: %w", explain(err))
	}
	key := publicKeyOf(found)
	blank := l.alias == "" && key.IsZero() && len(found.Peers) == 0
	return blank || !key.IsZero() && key == d.PublicKey(), nil
}

// removeStrays removes links with our alias and another name, which have been renamed: they
// still have the listen port.
func (d *Device) removeStrays(ctx context.Context) (changed bool, err error) {
	strays, err := findLinks(ctx, func(l link) bool { return l.alias == d.cfg.Alias && l.backend != "" })
	if err != nil {
		return false, err
	}
	for _, stray := range strays {
		if err := stray.remove(); err != nil {
			return changed, err
		}
		d.log.Warn("removed renamed link", "name", stray.name)
		changed = true
	}
	return changed, nil
}

func (d *Device) ensureKernel(ctx context.Context, l *link) (changed bool, err error) {
	if l.index == 0 {
		if err := createKernelLink(d.cfg.Name, cmp.Or(int(d.mtu.Load()), DefaultMTU)); err != nil {
			return false, err
		}
		if *l, err = findLink(d.cfg.Name); err != nil {
			return true, err
		}
		if err := l.setAlias(d.cfg.Alias); err != nil {
			return true, err
		}
		d.checked = time.Time{}
		d.log.Info("created link", "backend", Kernel, "index", l.index)
		changed = true
	}
	// Before the link goes up, so that it is never up with another port or key.
	identified, taken, err := d.identify(ctx, l.up)
	if err != nil {
		return changed || identified, err
	}
	settled, err := l.configure(int(d.mtu.Load()), d.log)
	if err == nil && taken != nil {
		err = d.learnPort(taken)
	}
	return changed || identified || settled, err
}

func (d *Device) ensureUserspace(ctx context.Context, l *link) (changed bool, err error) {
	if d.engine != nil && (!d.engine.alive() || d.engine.index != l.index) {
		d.log.Warn("link or engine is gone: serving the link again")
		d.disconnect()
	}
	if d.engine == nil {
		if changed, err = d.connect(ctx, l); err != nil {
			return changed, err
		}
		d.checked = time.Time{}
		d.peers.invalidate()
	}
	settled, err := l.configure(int(d.mtu.Load()), d.log)
	if err != nil {
		return changed || settled, err
	}
	restored, err := d.engine.up(ctx, d.cfg.Name)
	if err != nil {
		return true, err
	}
	if restored {
		d.log.Info("restored UAPI socket")
	}
	identified, taken, err := d.identify(ctx, true)
	if err == nil && taken != nil {
		err = d.learnPort(taken)
	}
	return changed || settled || restored || identified, err
}

// connect makes the engine serve the link l, which is created if it is the zero link. An
// engine that serves it already goes on.
func (d *Device) connect(ctx context.Context, l *link) (changed bool, err error) {
	d.stopAwaitingEngine()
	e, err := connectEngine(ctx, d.cfg.Engine, d.cfg.Name, d.wake)
	if err != nil {
		if d.cfg.Engine == "" && control.Absent(err) {
			d.awaitEngineStart(ctx)
		}
		return false, err
	}
	created, err := d.serve(ctx, e, l)
	if err != nil {
		e.close()
		return created, err
	}
	d.engine = e
	return created, nil
}

func (d *Device) serve(ctx context.Context, e *engine, l *link) (changed bool, err error) {
	index, err := e.serves(ctx, d.cfg.Name)
	switch {
	case err != nil:
		return false, err
	case index != 0 && index == l.index:
		e.index = index
		d.log.Info("the engine serves the link", "backend", Userspace, "index", l.index, "version", e.client.Build)
		return false, nil
	case index != 0:
		if err := unserve(ctx, d.cfg.Name); err != nil {
			return false, err
		}
	}
	// Before creating a link: the agent of an earlier release, which serves the device
	// itself, may still be ending.
	if err := control.Unserved(control.DevicePath(d.cfg.Name)); err != nil {
		return false, err
	}
	file, created, err := d.openLink(l)
	if err != nil {
		return false, err
	}
	err = e.serve(ctx, *l, file)
	err = errors.Join(err, file.Close())
	switch {
	case err != nil:
		return true, err
	case created:
		d.log.Info("created link", "backend", Userspace, "index", l.index)
	default:
		d.log.Info("serving the link of an earlier run", "backend", Userspace, "index", l.index)
	}
	return true, nil
}

// wake requests a call of Ensure, see Notify.
func (d *Device) wake() {
	if f := d.notify.Load(); f != nil {
		(*f)()
	}
}

// disconnect ends the connection to the engine, which goes on serving. The caller holds
// d.mu.
func (d *Device) disconnect() {
	d.stopAwaitingEngine()
	if d.engine != nil {
		d.engine.close()
		d.engine = nil
	}
}

// mark sets the device's firewall mark. Its sessions go on.
func (d *Device) mark() error {
	mark := int(d.cfg.Mark)
	if err := d.control.ConfigureDevice(d.cfg.Name, wgtypes.Config{FirewallMark: &mark}); err != nil {
		return fmt.Errorf("set firewall mark %#x: %w", mark, explain(err))
	}
	d.log.Info("configured device", "firewall_mark", fmt.Sprintf("%#x", mark))
	return nil
}

// identify sets the device's key, firewall mark and listen port, if a comparison is due. taken is why it
// has to listen on another port, see takePort.
func (d *Device) identify(ctx context.Context, up bool) (changed bool, taken, err error) {
	if !d.parked.Swap(false) && !d.checked.IsZero() && d.now().Sub(d.checked) < recheck {
		return false, nil, nil
	}
	d.checked = time.Time{}
	found, err := d.control.Device(d.cfg.Name)
	if err != nil {
		return false, nil, fmt.Errorf("read device: %w", explain(err))
	}
	key, err := d.identity()
	if err != nil {
		return false, nil, err
	}
	if publicKeyOf(found) != key.public {
		secret := wgtypes.Key(key.private.reveal())
		if err := d.control.ConfigureDevice(d.cfg.Name, wgtypes.Config{PrivateKey: &secret}); err != nil {
			return false, nil, fmt.Errorf("set key: %w", explain(err))
		}
		// Setting a key removes the peer with the same key.
		d.peers.invalidate()
		d.log.Info("configured device", "public_key", key.public)
		changed = true
	}
	// Before the port: peers behind the mark are configured after the first Ensure.
	if found.FirewallMark != int(d.cfg.Mark) {
		d.marked.Store(false)
		if err := d.mark(); err != nil {
			return changed, nil, err
		}
		changed = true
	}
	d.marked.Store(true)
	if up && found.ListenPort == d.cfg.ListenPort {
		d.port.Store(int64(d.cfg.ListenPort))
	} else {
		moved, taken, err := d.takePort(ctx, up)
		changed = changed || moved
		if taken != nil || err != nil {
			return changed, taken, err
		}
	}
	d.checked = d.now()
	return changed, nil, nil
}
