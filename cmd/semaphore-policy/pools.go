package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// poolsPeriod is the interval of reading Calico's IP pools: few objects that rarely
// change.
const poolsPeriod = time.Minute

// pools checks Calico's IP pools against the remotes' pod subnets.
type pools struct {
	calico  *policy.Calico
	remotes []config.Remote

	mu     sync.Mutex
	report status.PoolFaults
}

func newPools(calico *policy.Calico, remotes []config.Remote) *pools {
	return &pools{calico: calico, remotes: remotes, report: status.PoolFaults{Unknown: "not read since start"}}
}

// read reads the pools. Missing permission is no error, but leaves them unknown.
func (p *pools) read(ctx context.Context) error {
	found, err := p.calico.Pools(ctx)
	report := status.PoolFaults{Faults: map[string][]string{}}
	if err != nil {
		report.Unknown = err.Error()
	} else {
		for i := range p.remotes {
			if faults := policy.PoolFaults(p.remotes[i].PodSubnets, found); len(faults) > 0 {
				report.Faults[p.remotes[i].Name] = faults
			}
		}
	}
	p.mu.Lock()
	p.report = report
	p.mu.Unlock()
	if errors.Is(err, policy.ErrPoolsUnknown) || errors.Is(err, policy.ErrNoCalico) {
		return nil
	}
	return err
}

func (p *pools) status() status.PoolFaults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.report
}
