package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/contact"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// What a first contact is made of: agents learn of each other within contactSpread,
// and one packet of ten is lost.
const (
	contactSpread = 50 * time.Millisecond
	contactLoss   = 0.1
	contactWait   = 30 * time.Second // that long it is waited for
)

// contacts makes first contacts between agents, over IPv4 and IPv6, at several
// distances, with both sides new and one of them restarted, and notes how long they
// took in each direction.
func (b *bench) contacts(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "contacts-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	backends, err := contactBackends()
	if err != nil {
		return err
	}
	var lots []lot
	for _, backend := range backends {
		for _, ipv6 := range []bool{false, true} {
			for _, restarted := range []bool{false, true} {
				for _, delay := range []time.Duration{0, 10 * time.Millisecond} {
					lots = append(lots, lot{backend, ipv6, restarted, delay})
				}
			}
		}
	}
	var all []time.Duration
	for i, l := range lots {
		share := b.contactCount*(i+1)/len(lots) - b.contactCount*i/len(lots)
		took, err := l.run(ctx, filepath.Join(dir, fmt.Sprint(i)), share)
		if err != nil {
			return fmt.Errorf("%s: %w", l, err)
		}
		all = append(all, took...)
		b.say("%s: %s", l, contact.Distribution(took))
	}
	b.table.note("first contacts, %.0f %% of packets lost, each direction: %s", 100*contactLoss, contact.Distribution(all))
	took := measure.Latencies(all)
	b.table.alone = append(b.table.alone, took.Results("first contact")...)
	b.table.alone = append(b.table.alone, measure.Alone("first contact, longest", "s", took.Quantile(1).Seconds()))
	return nil
}

// contactBackends are the pairs of backends that this machine has.
func contactBackends() ([][2]string, error) {
	kernel, err := tunnel.Supported()
	if err != nil {
		return nil, err
	}
	pairs := [][2]string{{tunnel.Userspace, tunnel.Userspace}}
	if kernel {
		pairs = append(pairs, [2]string{tunnel.Kernel, tunnel.Userspace}, [2]string{tunnel.Kernel, tunnel.Kernel})
	}
	return pairs, nil
}

// lot is a kind of first contacts.
type lot struct {
	backends  [2]string
	ipv6      bool
	restarted bool
	delay     time.Duration // of each packet
}

func (l lot) String() string {
	text := strings.Join(l.backends[:], " and ")
	if l.ipv6 {
		text += ", IPv6"
	}
	if l.restarted {
		text += ", one restarted"
	}
	return fmt.Sprintf("%s, round trip %v", text, 2*l.delay)
}

// run makes so many first contacts, two at a time, and returns how long each took in
// each direction.
func (l lot) run(ctx context.Context, dir string, times int) ([]time.Duration, error) {
	const pairs = 2
	var (
		mu      sync.Mutex
		took    []time.Duration
		errs    [pairs]error
		running sync.WaitGroup
	)
	for n := range pairs {
		running.Go(func() {
			errs[n] = func() (err error) {
				p, err := contact.New(contact.Config{Dir: filepath.Join(dir, fmt.Sprint(n)), Backends: l.backends, IPv6: l.ipv6})
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, p.Close()) }()
				p.Relay(contact.Lossy(contactLoss, l.delay))
				for i := n; i < times; i += pairs {
					if err := ctx.Err(); err != nil {
						return err
					}
					one, err := p.Run(contact.Trial{Spread: contactSpread, Restarted: l.restarted, Timeout: contactWait})
					if err != nil {
						return err
					}
					mu.Lock()
					took = append(took, one[:]...)
					mu.Unlock()
				}
				return nil
			}()
		})
	}
	running.Wait()
	return took, errors.Join(errs[:]...)
}
