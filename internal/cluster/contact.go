package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"
)

// The two requests that a watch is made of.
const (
	verbList  = "list"
	verbWatch = "watch"
)

// quietPeriod is the least time between two warnings about one failing watch
// whose error keeps changing, as that of a TCP connection does with its port.
const quietPeriod = time.Minute

// contact is what is known of the way to one API server: when it last
// answered, and what is wrong when it doesn't.
type contact struct {
	series *series
	log    *slog.Logger

	mu     sync.Mutex
	last   time.Time
	err    error
	warned time.Time
}

// made notes that the server answered.
func (c *contact) made(ctx context.Context) {
	now := time.Now()
	c.mu.Lock()
	before := c.err
	c.last, c.err, c.warned = now, nil, time.Time{}
	c.mu.Unlock()
	c.series.contact(now)
	if before != nil {
		c.log.InfoContext(ctx, "contact recovered")
	}
}

// failed notes that a request failed. When ctx has ended that says nothing
// about the server.
func (c *contact) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	c.series.failed[verb].Inc()
	err = withoutURL(err)
	now := time.Now()
	c.mu.Lock()
	news := c.err == nil || err.Error() != c.err.Error() && now.Sub(c.warned) >= quietPeriod
	c.err = err
	if news {
		c.warned = now
	}
	c.mu.Unlock()
	level := slog.LevelDebug
	if news {
		level = slog.LevelWarn
	}
	c.log.Log(ctx, level, "no contact", "verb", verb, "err", err)
}

// withoutURL leaves out the address of a request, which differs between two
// that mean the same, but for its host.
func withoutURL(err error) error {
	var request *url.Error
	if !errors.As(err, &request) {
		return err
	}
	parsed, parseErr := url.Parse(request.URL)
	if parseErr != nil {
		return request.Err
	}
	return fmt.Errorf("%s: %w", parsed.Host, request.Err)
}

func (c *contact) state() (last time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.err
}
