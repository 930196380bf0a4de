package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

const (
	// minSilence is the least time between two signs of life that a server is
	// asked for.
	minSilence = time.Second
	// signsPerPeriod is how often a server may be asked before it counts as
	// stale: one lost request changes nothing.
	signsPerPeriod = 3
	// minStaleAfter is the shortest period that signs of life can bridge.
	minStaleAfter = signsPerPeriod * minSilence
	// signTimeout is how long a server has for a sign of life at most.
	signTimeout = 10 * time.Second
	// maxSign is how much of a sign of life is read, in bytes, so that its
	// connection can be used again.
	maxSign = 64 << 10
	// bookmarkPeriod is how long an open watch may be silent, with some to
	// spare: API servers send bookmarks about once a minute.
	bookmarkPeriod = 2 * time.Minute
	// wakeSpacing is the least time between two watches that recover and have the
	// others ask at once.
	wakeSpacing = 10 * time.Second
)

// ServerConfig describes a Server.
type ServerConfig struct {
	// Cluster names the server in logs.
	Cluster string
	// StaleAfter is how long without contact what the server said counts; 0:
	// for ever. Less than 3 s counts as 3 s.
	StaleAfter time.Duration
	// Ask asks the server for a sign of life, as SignOfLife does. It is not
	// called where StaleAfter is 0.
	Ask    func(ctx context.Context) error
	Logger *slog.Logger
}

// Server is what the watches of one API server have in common: when it last
// answered any of them. While a watch is open, an answer to another one, or a
// sign of life that the server was asked for, is as good as an event: a watch
// whose objects don't change says nothing for a minute.
type Server struct {
	cfg     ServerConfig
	silence time.Duration // after which to ask for a sign of life
	silent  errlog.Log

	mu      sync.Mutex
	last    time.Time     // when the server last answered anything
	back    chan struct{} // closed and replaced when it does so after an outage
	woken   time.Time     // when a watch that recovered last woke the others
	running bool
}

// NewServer returns a server that has not answered yet.
func NewServer(cfg ServerConfig) *Server {
	if cfg.StaleAfter > 0 {
		cfg.StaleAfter = max(cfg.StaleAfter, minStaleAfter)
	}
	return &Server{
		cfg: cfg, silence: cfg.StaleAfter / signsPerPeriod, back: make(chan struct{}),
		silent: errlog.Log{
			Logger: cfg.Logger, Level: slog.LevelWarn, Failing: "no sign of life", Over: "sign of life again",
			Kind: func(error) string { return "" }, // one line for an outage
		},
	}
}

// StaleAfter returns how long without contact what the server said counts; 0:
// for ever.
func (s *Server) StaleAfter() time.Duration { return s.cfg.StaleAfter }

// String names the server as a task.
func (s *Server) String() string { return "signs of life of " + s.cfg.Cluster }

// Run asks the server for a sign of life whenever nothing was heard of it for a
// third of StaleAfter, until ctx ends, which is not an error. Without
// StaleAfter it asks for nothing. It must not be called twice.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.running
	s.running = true
	s.mu.Unlock()
	if again {
		return fmt.Errorf("%v runs already", s)
	}
	if s.cfg.StaleAfter <= 0 {
		<-ctx.Done()
		return nil
	}
	timer := time.NewTimer(s.silence)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		wait := s.silence - time.Since(s.heardLast())
		if wait <= 0 {
			began := time.Now()
			s.ask(ctx)
			wait = max(s.silence-time.Since(began), s.silence/4)
		}
		timer.Reset(wait)
	}
}

// ask asks for a sign of life, and logs when none comes any more, or one comes
// again.
func (s *Server) ask(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, min(s.silence, signTimeout))
	defer cancel()
	err := s.cfg.Ask(bounded)
	if err != nil && ctx.Err() != nil {
		return
	}
	if err == nil {
		s.heard(time.Now())
	}
	if err != nil {
		err = withoutURL(err)
	}
	s.silent.Note(ctx, err, "cluster", s.cfg.Cluster)
}

// heard notes that the server answered. The first time after an outage that
// ends the back-off of its watches.
func (s *Server) heard(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silence > 0 && now.Sub(s.last) > 2*s.silence {
		s.wake()
	}
	if now.After(s.last) {
		s.last = now
	}
}

// recovered notes that the server answered a watch for the first time, or for the
// first time after it didn't: what others wait for is likely to be over, too. Each of
// them waits for its own next request otherwise, up to half a minute. A watch that
// goes on failing alone is asked no more often for that, because an answer to one
// that didn't fail changes nothing.
func (s *Server) recovered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Watches whose lists succeed and whose streams don't would wake each other.
	if now := time.Now(); now.Sub(s.woken) >= wakeSpacing {
		s.woken = now
		s.wake()
	}
}

// wake ends the back-off of all watches; the caller holds mu.
func (s *Server) wake() {
	close(s.back)
	s.back = make(chan struct{})
}

func (s *Server) heardLast() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// returns is closed when the server next answers after an outage.
func (s *Server) returns() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back
}

// fresh returns up to when what a watch knows is what the server knew. While it
// is open, that is when the server last answered anything, as long as bookmarks
// show that the stream is still served; otherwise when it last heard something
// itself.
func fresh(own time.Time, open bool, server time.Time) time.Time {
	if limit := own.Add(bookmarkPeriod); server.After(limit) {
		server = limit
	}
	if open && server.After(own) {
		return server
	}
	return own
}

// SignOfLife returns, for ServerConfig, a request that every authenticated
// client may make (the roles system:discovery and system:public-info-viewer).
// That the server limits the rate of requests, or has taken the right away, is
// a sign of life too: it knows who asks. That it doesn't know is none.
func SignOfLife(client func() (Client, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := client()
		if err != nil {
			return err
		}
		body, err := c.REST().Get().AbsPath("/version").MaxRetries(0).Stream(ctx)
		if err != nil {
			if apierrors.IsForbidden(err) || apierrors.IsTooManyRequests(err) {
				return nil
			}
			var status apierrors.APIStatus
			if errors.As(err, &status) && status.Status().Code != 0 {
				// Its text is the server's, and may be anything.
				return fmt.Errorf("ask for the version: %s", http.StatusText(int(status.Status().Code)))
			}
			return err
		}
		_, err = io.CopyN(io.Discard, body, maxSign)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, body.Close())
	}
}
