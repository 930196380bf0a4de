package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
)

const (
	// minSilence is the minimum interval between pings.
	minSilence = time.Second
	// pingsPerPeriod is the number of pings per StaleAfter: a single lost one doesn't make
	// the server stale.
	pingsPerPeriod = 3
	minStaleAfter  = pingsPerPeriod * minSilence
	// pingTimeout is the maximum duration of a ping.
	pingTimeout = 10 * time.Second
	// maxPing is the maximum size of a response that is read, in bytes, to reuse the
	// connection.
	maxPing = 64 << 10
	// bookmarkPeriod is the maximum silence of an open watch: API servers send bookmarks
	// about once a minute.
	bookmarkPeriod = 2 * time.Minute
)

// ServerConfig describes a Server.
type ServerConfig struct {
	// Cluster names the server in logs.
	Cluster string
	// StaleAfter is the time without contact after which objects are stale; 0: never. The
	// minimum is 3 s.
	StaleAfter time.Duration
	// Ping makes a cheap request, such as that of the function Ping. It is not called if
	// StaleAfter is 0.
	Ping   func(ctx context.Context) error
	Logger *slog.Logger
}

// Server is shared by the watches of one API server: it has the time of the last response
// to any of them. While a watch is open, a response to another one, or to a ping, counts
// like an event: a watch without changes is silent for a minute.
type Server struct {
	cfg     ServerConfig
	silence time.Duration // after which to ping
	pings   errlog.Log

	mu      sync.Mutex
	last    time.Time // of the last response
	running bool
}

// NewServer returns a server without a response yet.
func NewServer(cfg ServerConfig) *Server {
	if cfg.StaleAfter > 0 {
		cfg.StaleAfter = max(cfg.StaleAfter, minStaleAfter)
	}
	return &Server{
		cfg: cfg, silence: cfg.StaleAfter / pingsPerPeriod,
		pings: errlog.Log{
			Logger: cfg.Logger, Level: slog.LevelWarn, Failing: "API server ping failed", Over: "API server ping succeeded again",
			Kind: func(error) string { return "" }, // one line per outage
		},
	}
}

// StaleAfter returns the time without contact after which objects are stale; 0: never.
func (s *Server) StaleAfter() time.Duration { return s.cfg.StaleAfter }

// String names the server as a task.
func (s *Server) String() string { return "pings of " + s.cfg.Cluster }

// Run pings the server after each third of StaleAfter without a response, until ctx ends,
// then returns nil. Without StaleAfter it doesn't ping. It must not be called twice.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	again := s.running
	s.running = true
	s.mu.Unlock()
	if again {
		return fmt.Errorf("%v is already running", s)
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
		wait := s.silence - time.Since(s.lastResponse())
		if wait <= 0 {
			began := time.Now()
			s.ping(ctx)
			wait = max(s.silence-time.Since(began), s.silence/4)
		}
		timer.Reset(wait)
	}
}

// ping pings the server once.
func (s *Server) ping(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, min(s.silence, pingTimeout))
	defer cancel()
	err := s.cfg.Ping(bounded)
	if err != nil && ctx.Err() != nil {
		return
	}
	if err == nil {
		s.recordResponse(time.Now())
	}
	if err != nil {
		err = withoutURL(err)
	}
	s.pings.Note(ctx, err, "cluster", s.cfg.Cluster)
}

// recordResponse records the time of a response.
func (s *Server) recordResponse(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.After(s.last) {
		s.last = now
	}
}

func (s *Server) lastResponse() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// fresh returns up to when the objects of a watch are current. While the watch is open,
// that is the time of the server's last response, up to bookmarkPeriod after the watch's
// own last event; otherwise it is the latter.
func fresh(own time.Time, open bool, server time.Time) time.Time {
	if limit := own.Add(bookmarkPeriod); server.After(limit) {
		server = limit
	}
	if open && server.After(own) {
		return server
	}
	return own
}

// Ping returns a ServerConfig.Ping: a request that every authenticated client may make (the
// roles system:discovery and system:public-info-viewer). 403 and 429 count as success, as
// the server authenticated the client; 401 doesn't.
func Ping(client func() (Client, error)) func(context.Context) error {
	get := Get(client, "/version")
	return func(ctx context.Context) error {
		err := get(ctx)
		if apierrors.IsForbidden(err) {
			return nil
		}
		return err
	}
}

// Get returns a function that requests a path, such as "/api/v1/nodes?limit=1", and drops the
// response. 429 counts as success, as the server authenticated the client.
func Get(client func() (Client, error), path string) func(context.Context) error {
	path, query, _ := strings.Cut(path, "?")
	return func(ctx context.Context) error {
		c, err := client()
		if err != nil {
			return err
		}
		request := c.REST().Get().AbsPath(path).MaxRetries(0)
		for one := range strings.SplitSeq(query, "&") {
			if key, value, has := strings.Cut(one, "="); has {
				request = request.Param(key, value)
			}
		}
		body, err := request.Stream(ctx)
		if err != nil {
			if apierrors.IsTooManyRequests(err) {
				return nil
			}
			var status apierrors.APIStatus
			if errors.As(err, &status) && status.Status().Code != 0 {
				// Its text is that of the remote.
				code := status.Status().Code
				return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: "get " + path + ": " + http.StatusText(int(code))}}
			}
			return err
		}
		_, err = io.CopyN(io.Discard, body, maxPing)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, body.Close())
	}
}
