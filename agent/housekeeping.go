package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// savePeers saves the last applied peers of all remotes.
func (a *agent) savePeers(ctx context.Context) error {
	var errs []error
	for _, r := range a.remotes {
		errs = append(errs, r.controller.Save(ctx))
	}
	return errors.Join(errs...)
}

// configured reports whether a device is that of a configured remote.
func (a *agent) configured(device string) bool {
	return slices.ContainsFunc(a.remotes, func(r *remote) bool { return r.device.Name() == device })
}

// removeOrphans removes the devices and the stored peers of remotes that are no longer
// configured, since devices would go on accepting packets from their peers.
func (a *agent) removeOrphans(ctx context.Context) error {
	forgotten, forgetErr := peers.Forget(a.cfg.KeyPath, a.configured)
	for _, device := range forgotten {
		a.log.Info("removed the stored peers of a remote that is no longer configured", "device", device)
	}
	links, err := tunnel.List(ctx)
	errs := []error{forgetErr, err}
	for _, l := range links {
		if a.configured(l.Name) {
			continue
		}
		if err := tunnel.Remove(ctx, l.Name, l.Alias); err != nil {
			errs = append(errs, err)
			continue
		}
		a.log.Info("removed the device of a remote that is no longer configured", "cluster", l.Remote, "device", l.Name)
	}
	return errors.Join(errs...)
}
