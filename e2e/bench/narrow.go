package main

import (
	"context"
	"strconv"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// The underlay's MTU with which the tunnel's packets fit, and one with which they
// don't and are fragmented.
const (
	fittingMTU = 1500
	narrowMTU  = 1400
)

// narrow compares TCP through a tunnel whose packets are fragmented with the same
// tunnel on an underlay where they fit.
func (b *bench) narrow(ctx context.Context, s *side) error {
	at := func(mtu int) (transfer, error) {
		for _, pod := range []*testbed.Pod{s.from, s.to} {
			if _, err := pod.Node.Run(ctx, "ip", "link", "set", "eth0", "mtu", strconv.Itoa(mtu)); err != nil {
				return transfer{}, err
			}
		}
		return b.transfer(ctx, s, 1)
	}
	var speed []pair
	for i := range b.pairs {
		x, err := at(narrowMTU)
		if err != nil {
			return err
		}
		y, err := at(fittingMTU)
		if err != nil {
			return err
		}
		speed = append(speed, pair{x.bitsPerSecond, y.bitsPerSecond})
		b.say("underlay of %d, pair %d of %d: %s and %s, ratio %.3f", narrowMTU, i+1, b.pairs,
			gigabits(x.bitsPerSecond), gigabits(y.bitsPerSecond), speed[i].ratio())
	}
	b.table.add(row{
		what: "TCP, in fragments over " + strconv.Itoa(narrowMTU), beside: "over " + strconv.Itoa(fittingMTU),
		pairs: speed, unit: bandwidth,
	})
	return nil
}
