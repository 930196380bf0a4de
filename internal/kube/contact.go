package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// The two requests that a watch is made of.
const (
	verbList  = "list"
	verbWatch = "watch"
)

// quietPeriod is the least time between two warnings about one failing watch
// whose error keeps changing, as that of a TCP connection does with its port.
const quietPeriod = time.Minute

// contact is what is known of the way that one watch has to its API server:
// when it last heard something, and what is wrong when it doesn't.
type contact struct {
	server   *Server
	series   *series
	failures errlog.Log // of the last request

	mu    sync.Mutex
	heard bool      // the server has answered
	last  time.Time // up to when what was read is complete
	open  int       // streams of events; two for a moment when one follows another
}

func newContact(server *Server, s *series, log *slog.Logger) *contact {
	return &contact{server: server, series: s, failures: errlog.Log{
		Logger: log, Level: slog.LevelWarn, Failing: "no contact", Over: "contact recovered", Quiet: quietPeriod,
	}}
}

// made notes that the server answered, and that what the watch has is what the
// server has.
func (c *contact) made(ctx context.Context) { c.note(ctx, true) }

// answered notes that the server answered, but not with all that the watch needs to
// be up to date: with a part of a list, or that it must list anew.
func (c *contact) answered(ctx context.Context) { c.note(ctx, false) }

func (c *contact) note(ctx context.Context, complete bool) {
	now := time.Now()
	c.mu.Lock()
	first := !c.heard
	c.heard = true
	if complete {
		c.last = now
	}
	recovered := c.failures.Note(ctx, nil)
	c.mu.Unlock()
	c.server.heard(now)
	c.series.contact(now)
	if recovered || first {
		c.server.recovered()
	}
}

// failed notes that a request failed. When ctx has ended that says nothing
// about the server.
func (c *contact) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	c.series.failed[verb].Inc()
	err = printable.Error(withoutURL(err))
	server := c.server.heardLast()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(server)
	c.failures.Note(ctx, err, "verb", verb)
}

// opened notes that a stream of events is open, and ended that it isn't any
// more.
func (c *contact) opened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
}

func (c *contact) ended() {
	server := c.server.heardLast()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle(server)
	c.open--
}

// settle keeps what an open stream was worth until now, for when it is open no
// more; the caller holds mu.
func (c *contact) settle(server time.Time) { c.last = c.fresh(server) }

func (c *contact) fresh(server time.Time) time.Time {
	return fresh(c.last, c.open > 0 && c.failures.Err() == nil, server)
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

// state returns up to when the watch knows what the server does, and why its
// last request failed.
func (c *contact) state() (last time.Time, err error) {
	server := c.server.heardLast()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh(server), c.failures.Err()
}
