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

// quietPeriod is the minimum interval between two warnings about one watch whose error keeps
// changing, as that of a TCP connection does with its port, or that is at its bounds again and again.
const quietPeriod = time.Minute

// health is the state of the requests of one watch: up to when its objects are current,
// and the last error.
type health struct {
	server   *Server
	series   *series
	failures errlog.Log // of the last request

	mu   sync.Mutex
	last time.Time // up to when the objects are current
	open int       // watches; briefly two when one follows another
}

func newHealth(server *Server, s *series, log *slog.Logger) *health {
	return &health{server: server, series: s, failures: errlog.Log{
		Logger: log, Level: slog.LevelWarn, Failing: "list or watch failed", Over: "list and watch recovered", Quiet: quietPeriod,
	}}
}

// record records a response. Complete: the objects are current after it; a part of a list, or an
// expired resource version, doesn't make them so.
func (c *health) record(ctx context.Context, complete bool) {
	now := time.Now()
	c.mu.Lock()
	if complete {
		c.last = now
	}
	c.failures.Note(ctx, nil)
	c.mu.Unlock()
	c.server.recordResponse(now)
	c.series.contact(now)
}

// recordFailure records a failed request, unless ctx has ended, which may be the cause.
func (c *health) recordFailure(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	c.series.failed[verb].Inc()
	err = printable.Error(withoutURL(err))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = c.fresh() // no longer while the watch is open
	c.failures.Note(ctx, err, "verb", verb)
}

// streamOpened and streamClosed count open watches.
func (c *health) streamOpened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
}

func (c *health) streamClosed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = c.fresh()
	c.open--
}

// fresh returns up to when the objects are current. Callers hold mu.
func (c *health) fresh() time.Time {
	return fresh(c.last, c.open > 0 && c.failures.Err() == nil, c.server.lastResponse())
}

// withoutURL reduces the URL of a request to its host: the rest differs between errors of
// one kind.
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

// state returns up to when the objects are current, and the error of the last request.
func (c *health) state() (last time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh(), c.failures.Err()
}
