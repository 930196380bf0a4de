package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

const (
	// ipPools is the resource name of Calico's IP pools.
	ipPools = "ippools"
	// poolsPeriod is the interval of reading them: few objects that rarely change.
	poolsPeriod = time.Minute
)

// ErrPoolsUnknown is wrapped by errors of IP pools that can't be read because of a missing
// permission or resource.
var ErrPoolsUnknown = errors.New("IP pools are unknown")

// Pool is a trimmed IP pool of Calico.
type Pool struct {
	Name             string
	CIDR             netip.Prefix
	Disabled         bool
	NATOutgoing      bool
	DisableBGPExport bool
}

// poolLoop checks Calico's IP pools against the remotes' pod subnets.
func (c *Controller) poolLoop() *reconcile.Loop {
	return reconcile.NewLoop(reconcile.Config{
		Name: "IP pools", Reconcile: c.checkPools, Trigger: reconcile.NewTrigger(), Resync: poolsPeriod, Logger: c.Logger,
	})
}

// checkPools leaves pools unknown where it has no permission, which is no error.
func (c *Controller) checkPools(ctx context.Context) error {
	found, err := c.Calico.Pools(ctx)
	faults := statuspage.PoolFaults{Faults: map[string][]string{}}
	if err != nil {
		faults.Unknown = err.Error()
	} else {
		for i := range c.Remotes {
			rules := &c.Remotes[i].Rules
			if all := PoolFaults(rules.Subnets, found); len(all) > 0 {
				faults.Faults[rules.Cluster] = all
			}
		}
	}
	c.mu.Lock()
	c.pools = faults
	c.mu.Unlock()
	if errors.Is(err, ErrPoolsUnknown) || errors.Is(err, ErrNoCalico) {
		return nil
	}
	return err
}

// Pools reads Calico's IP pools. It ignores pools with an invalid CIDR.
func (c *Calico) Pools(ctx context.Context) ([]Pool, error) {
	if _, err := c.Sets(ctx); err != nil {
		return nil, fmt.Errorf("read IP pools: %w", err)
	}
	c.mu.Lock()
	gv := c.version
	c.mu.Unlock()
	client, err := rest.UnversionedRESTClientFor(withoutGroup(c.cfg))
	if err != nil {
		return nil, fmt.Errorf("read IP pools: %w", err)
	}
	body, err := client.Get().AbsPath("/apis", gv.Group, gv.Version, ipPools).Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: %w", ErrPoolsUnknown, err)
	case err != nil:
		return nil, fmt.Errorf("read IP pools: %w", err)
	}
	return parsePools(body)
}

func parsePools(list []byte) ([]Pool, error) {
	var found struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				CIDR             string `json:"cidr"`
				Disabled         bool   `json:"disabled"`
				NATOutgoing      bool   `json:"natOutgoing"`
				DisableBGPExport bool   `json:"disableBGPExport"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(list, &found); err != nil {
		return nil, fmt.Errorf("read IP pools: %w", err)
	}
	var pools []Pool
	for i := range found.Items {
		item := &found.Items[i]
		if cidr, err := netip.ParsePrefix(item.Spec.CIDR); err == nil {
			pools = append(pools, Pool{
				Name: item.Metadata.Name, CIDR: cidr.Masked(), Disabled: item.Spec.Disabled,
				NATOutgoing: item.Spec.NATOutgoing, DisableBGPExport: item.Spec.DisableBGPExport,
			})
		}
	}
	return pools, nil
}

// PoolFaults returns the configuration errors of Calico's pools for a remote's pod subnets:
// local pods must reach these with their own addresses, and only through the tunnel.
//
//   - Pods of a pool with natOutgoing are masqueraded, unless the destination is in a pool.
//   - Calico's BGP announces routes to destinations in a pool, including those of the agent,
//     unless the pool disables that.
//   - Local pods get addresses of pools that aren't disabled.
func PoolFaults(subnets []netip.Prefix, pools []Pool) []string {
	var faults []string
	for _, s := range subnets {
		held := false
		for _, p := range pools {
			held = held || p.CIDR.Bits() <= s.Bits() && p.CIDR.Contains(s.Addr())
		}
		masquerading := slices.IndexFunc(pools, func(p Pool) bool {
			return p.NATOutgoing && !p.CIDR.Overlaps(s) && p.CIDR.Addr().Is4() == s.Addr().Is4()
		})
		if !held && masquerading >= 0 {
			faults = append(faults, fmt.Sprintf("no IP pool has %s: pods of the pool %s are masqueraded on their way there", s, pools[masquerading].Name))
		}
		for _, p := range pools {
			if !p.CIDR.Overlaps(s) {
				continue
			}
			if !p.Disabled {
				faults = append(faults, fmt.Sprintf("the IP pool %s (%s) isn't disabled: pods here get addresses of %s", p.Name, p.CIDR, s))
			}
			if !p.DisableBGPExport {
				faults = append(faults, fmt.Sprintf("the IP pool %s (%s) lacks disableBGPExport: true: Calico's BGP, if it is on, leads packets for %s out in plaintext", p.Name, p.CIDR, s))
			}
		}
	}
	return faults
}
