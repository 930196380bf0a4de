package inspect

import (
	"net/http"
	"sync"
	"time"
)

// clock compares the API server's clock with ours, by the Date headers of responses (RFC
// 9110, 6.6.1), which have whole seconds.
type clock struct {
	mu    sync.Mutex
	known bool
	ahead time.Duration
	// width is the duration of the request that ahead comes from, which bounds the error.
	width time.Duration
}

func (c *clock) over(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		begin := time.Now()
		response, err := next.RoundTrip(r)
		if err == nil {
			c.note(begin, time.Now(), response.Header.Get("Date"))
		}
		return response, err
	})
}

func (c *clock) note(begin, end time.Time, date string) {
	at, err := http.ParseTime(date)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if width := end.Sub(begin); !c.known || width < c.width {
		c.known, c.width, c.ahead = true, width, at.Sub(begin.Add(width/2)).Round(time.Second)
	}
}

func (c *clock) fact(source string) Fact[time.Duration] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return Fact[time.Duration]{Source: source, Err: "no response has a Date header"}
	}
	return Fact[time.Duration]{Value: c.ahead, Source: source}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
