package tokens

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

const (
	// checkSpacing is the minimum interval between two requests to a remote: doctor knows no
	// more than the last one, and reports may be requested at any rate.
	checkSpacing = 10 * time.Second
	// checkTimeout bounds a request, checkWait how long a report waits for it.
	checkTimeout, checkWait = 10 * time.Second, 2 * time.Second
)

// CredentialChecks requests what a program reads from API servers, with the credentials on disk, over new
// connections, when a report is requested.
type CredentialChecks struct {
	remotes []*credentialCheck
	now     func() time.Time
}

// credentialCheck is the state for one remote.
type credentialCheck struct {
	name, file string
	ask        func(ctx context.Context) error

	mu      sync.Mutex
	began   time.Time
	running chan struct{} // closed at the end of the running request; nil: none runs
	last    statuspage.CredentialCheck
}

// CredentialCheckConfig describes CredentialChecks.
type CredentialCheckConfig struct {
	// Remotes are those of the program, UserAgent what it names itself to API servers.
	Remotes   []config.Remote
	UserAgent string
	// Cluster is the program's own, with Local as its access.
	Cluster string
	Local   config.Access
	// FromRemotes and FromLocal are the paths that the program reads, with limits.
	FromRemotes, FromLocal []string
}

// NewCredentialChecks makes no request.
func NewCredentialChecks(c CredentialCheckConfig) *CredentialChecks {
	t := &CredentialChecks{now: time.Now}
	for i := range c.Remotes {
		r := &c.Remotes[i]
		t.remotes = append(t.remotes, &credentialCheck{name: r.Name, file: r.Access.TokenFile, ask: asker(kube.ClientConfig{
			Access: r.Access, UserAgent: c.UserAgent, Bounds: kube.Bounds{Answer: int64(r.MaxAnswer), Objects: r.MaxObjects},
		}, c.FromRemotes)})
	}
	if c.Cluster != "" {
		t.remotes = append(t.remotes, &credentialCheck{name: c.Cluster, ask: asker(kube.ClientConfig{Access: c.Local, UserAgent: c.UserAgent}, c.FromLocal)})
	}
	return t
}

// asker returns a function that requests paths over a new connection. Each call makes a
// client, because a client doesn't read a token file again before each request.
func asker(c kube.ClientConfig, paths []string) func(context.Context) error {
	var cfg *rest.Config // with the loaded CA
	return func(ctx context.Context) error {
		if cfg == nil {
			made, err := kube.RESTConfig(c)
			if err != nil {
				return err
			}
			cfg = made
		}
		client, err := kube.NewClient(cfg)
		if err != nil {
			return err
		}
		defer utilnet.CloseIdleConnectionsFor(cfg.Transport)
		for _, path := range paths {
			if err := kube.Get(func() (kube.Client, error) { return client, nil }, path)(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// Report returns the results by remote. It asks each remote that wasn't asked lately, and
// waits at most 2 s; a later result is in the next report.
func (t *CredentialChecks) Report() map[string]statuspage.CredentialCheck {
	all := make(map[string]statuspage.CredentialCheck, len(t.remotes))
	timer := time.NewTimer(checkWait)
	defer timer.Stop()
	var waiting []chan struct{}
	for _, r := range t.remotes {
		if done := r.start(t.now()); done != nil {
			waiting = append(waiting, done)
		}
	}
	for over := false; len(waiting) > 0 && !over; {
		select {
		case <-waiting[0]:
			waiting = waiting[1:]
		case <-timer.C:
			over = true
		}
	}
	for _, r := range t.remotes {
		all[r.name] = r.result()
	}
	return all
}

// Show adds the remotes to a page whose API server doesn't accept the credentials on disk,
// unless it is known to fail, and tokens that should have been renewed.
func Show(p *report.Page, all map[string]statuspage.CredentialCheck, failing func(remote string) bool) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t := all[name]
		if t.Error != "" && !failing(name) {
			p.Wrong("remote %s: a request with the credentials on disk: %s", name, t.Error)
		}
		if t.Overdue(p.Now) {
			p.Wrong("remote %s: its token on disk expires at %s and hasn't been renewed", name, t.Expires.UTC().Format(time.RFC3339))
		}
	}
}

// start starts a request, unless there was one lately. It returns a channel that is closed
// at the end of a running one.
func (r *credentialCheck) start(now time.Time) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running != nil || now.Sub(r.began) < checkSpacing {
		return r.running
	}
	r.began, r.running = now, make(chan struct{})
	go func(done chan struct{}) {
		ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
		defer cancel()
		err := r.ask(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last = statuspage.CredentialCheck{Asked: &now}
		if err != nil {
			r.last.Error, r.last.Reason = printable.Error(err).Error(), kube.Reason(err)
		}
		r.running = nil
		close(done)
	}(r.running)
	return r.running
}

// result returns the last result, with the dates of the token on disk.
func (r *credentialCheck) result() statuspage.CredentialCheck {
	r.mu.Lock()
	last := r.last
	if began := r.began; r.running != nil {
		last.Waiting = &began
	}
	r.mu.Unlock()
	if r.file == "" {
		return last
	}
	content, err := os.ReadFile(r.file)
	if err != nil {
		return last // A request fails, too.
	}
	if claims, err := Parse(strings.TrimSpace(string(content))); err == nil && !claims.Expires.IsZero() {
		last.Issued, last.Expires = &claims.Issued, &claims.Expires
	}
	return last
}
