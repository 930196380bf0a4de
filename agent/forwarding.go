package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// checkForwarding switches forwarding on for our devices, and reads what else it depends
// on, which is left alone.
func (h *host) checkForwarding(ctx context.Context) (effect, error) {
	a := h.agent
	var devices []int
	for _, r := range a.remotes {
		index, _ := r.device.Index()
		devices = append(devices, index)
	}
	enabled, err := routes.EnableForwarding()
	for _, device := range enabled {
		a.log.InfoContext(ctx, "forwarding switched on", "device", device)
	}
	return effect{devices, len(enabled) > 0}, errors.Join(err, h.readForwarding(ctx))
}

// readForwarding reads what else forwarding depends on.
func (h *host) readForwarding(ctx context.Context) error {
	a := h.agent
	pods, known := a.podCIDRs()
	if !known {
		h.forwards.Store(nil)
		return nil
	}
	var remotes []netip.Prefix
	for _, r := range a.admitted() {
		remotes = append(remotes, r.cfg.PodSubnets...)
	}
	off, err := routes.ForwardingOff(pods, remotes)
	if err != nil {
		return err
	}
	before := h.forwards.Swap(&off)
	switch {
	case len(off) > 0 && (before == nil || !slices.Equal(*before, off)):
		a.log.ErrorContext(ctx, "packets between pods and tunnels are not forwarded by this host", "settings", off)
	case len(off) == 0 && before != nil && len(*before) > 0:
		a.log.InfoContext(ctx, "packets between pods and tunnels are forwarded again")
	}
	return nil
}

func (a *agent) forwardingStatus() statuspage.Forwarding {
	off := a.host.forwards.Load()
	if off == nil {
		return statuspage.Forwarding{}
	}
	return statuspage.Forwarding{Known: true, Off: *off}
}

// forwardingCollector reports forwarding as last read.
type forwardingCollector struct {
	agent *agent
	off   *prometheus.Desc
}

func newForwardingCollector(a *agent) *forwardingCollector {
	return &forwardingCollector{agent: a, off: prometheus.NewDesc("semaphore_wg_forwarding_off",
		"Settings of this host by which packets between its pods and tunnels are not forwarded; absent until they are read.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (c *forwardingCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.off }

// Collect implements prometheus.Collector.
func (c *forwardingCollector) Collect(ch chan<- prometheus.Metric) {
	if off := c.agent.host.forwards.Load(); off != nil {
		ch <- prometheus.MustNewConstMetric(c.off, prometheus.GaugeValue, float64(len(*off)))
	}
}
