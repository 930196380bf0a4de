package programs

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// Request is a request of a Client.
type Request struct {
	At, End time.Time // when it began and ended
	By      string    // the pod that answered; empty: it failed
	Err     error
}

// Client requests a URL ten times a second, each time over a new connection, with a timeout
// of a second.
type Client struct {
	// Stop ends it, and waits until it has.
	Stop func()

	mu  sync.Mutex
	all []Request
}

// StartClient sends requests from a pod until Stop is called or ctx ends.
func StartClient(ctx context.Context, from *testbed.Pod, url string) *Client {
	c := &Client{}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				wg.Go(func() { c.ask(context.WithoutCancel(ctx), from, url) })
			}
		}
	})
	c.Stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	return c
}

func (c *Client) ask(ctx context.Context, from *testbed.Pod, url string) {
	r := Request{At: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var body string
	if body, r.Err = from.Get(ctx, url); r.Err == nil {
		r.By, _, _ = strings.Cut(body, " ")
	}
	r.End = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, r)
}

// Since returns the finished requests that began after a time, in order.
func (c *Client) Since(at time.Time) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	some := slices.DeleteFunc(slices.Clone(c.all), func(r Request) bool { return r.At.Before(at) })
	slices.SortFunc(some, func(x, y Request) int { return x.At.Compare(y.At) })
	return some
}

// Failed returns the number of failed requests that began after a time, and when the last of
// them began.
func (c *Client) Failed(since time.Time) (failed int, last time.Time) {
	for _, r := range c.Since(since) {
		if r.Err != nil {
			failed, last = failed+1, r.At
		}
	}
	return failed, last
}

// First returns when the first request after a time that a pod answered began; zero: none.
func (c *Client) First(since time.Time, pod *testbed.Pod) time.Time {
	for _, r := range c.Since(since) {
		if r.By == pod.Name {
			return r.At
		}
	}
	return time.Time{}
}
