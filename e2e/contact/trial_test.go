package contact

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Trial is one first contact.
type Trial struct {
	// Spread is the maximum time between the calls of Meet for the two sides.
	Spread time.Duration
	// Restarted makes one side, chosen at random, lose its sessions. The other side keeps
	// its sessions.
	Restarted bool
	// Timeout is how long it may take at most.
	Timeout time.Duration
}

// Took is the time until requests succeed in each direction, from the later call of Meet.
type Took [2]time.Duration

// Run makes a first contact, and then removes each side from the peers of the other one.
func (p *Pair) Run(t Trial) (Took, error) {
	var took Took
	known := [2]bool{}
	if t.Restarted {
		if err := p.each(func(side int) error { return p.Meet(side, time.Now()) }); err != nil {
			return took, err
		}
		if err := p.each(func(side int) error { return p.reach(side, time.Minute) }); err != nil {
			return took, err
		}
		lost := rand.IntN(2)
		known[1-lost] = true
		if err := p.Restart(lost); err != nil {
			return took, err
		}
	}
	if _, err := p.Story(); err != nil { // of what came before
		return took, err
	}
	begin := time.Now().Add(20 * time.Millisecond)
	p.begin = begin
	err := p.each(func(side int) error {
		at := begin
		if !known[side] {
			at = at.Add(rand.N(t.Spread + 1))
			if err := p.Meet(side, at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return took, err
	}
	learnt := time.Now()
	p.log.note("both know")
	err = p.each(func(side int) error {
		reached, err := p.Reach(side, t.Timeout)
		if err != nil {
			took[side] = t.Timeout
			return nil
		}
		took[side] = max(reached.Sub(learnt), 0)
		p.log.note("%d: reaches the other since %.1f ms", side, float64(reached.Sub(begin).Microseconds())/1000)
		return nil
	})
	if err != nil {
		return took, err
	}
	return took, p.part()
}

func (p *Pair) reach(side int, timeout time.Duration) error {
	_, err := p.Reach(side, timeout)
	return err
}

// part makes both sides forget each other.
func (p *Pair) part() error {
	if err := p.each(p.Forget); err != nil {
		return err
	}
	for side := range p.agents {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			_, exists, _, err := p.Look(side)
			if err != nil {
				return err
			}
			if !exists {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("side %d doesn't forget the other one", side)
			}
		}
	}
	return nil
}

// each calls do for both sides at the same time.
func (p *Pair) each(do func(side int) error) error {
	var (
		errs [2]error
		both sync.WaitGroup
	)
	for side := range errs {
		both.Go(func() { errs[side] = do(side) })
	}
	both.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Lossy loses a packet with the given probability, and delays the others.
func Lossy(probability float64, delay time.Duration) Rule {
	return func(Packet) (time.Duration, bool) { return delay, rand.Float64() >= probability }
}

// Goal is how long a first contact may take, in either direction: six attempts are made in it.
const Goal = 800 * time.Millisecond

// Distribution writes how long first contacts took, each direction by itself.
func Distribution(took []time.Duration) string {
	if len(took) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(took))
	within, _ := slices.BinarySearch(sorted, Goal+1)
	at := func(share float64) time.Duration {
		return sorted[int(share*float64(len(sorted)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v, longest %v, %d of %d longer than %v",
		at(0.5), at(0.9), at(0.99), at(1), len(sorted)-within, len(sorted), Goal)
}
