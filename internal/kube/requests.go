package kube

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// RequestMetrics count and time the requests to the local API server. With the prefix of the
// service mirror the names are those of the original tool.
type RequestMetrics struct {
	*prometheus.Registry

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewRequestMetrics returns metrics, to be registered by the caller.
func NewRequestMetrics(prefix string) *RequestMetrics {
	all := prometheus.NewRegistry()
	with := promauto.With(all)
	return &RequestMetrics{
		Registry: all,
		requests: with.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "_kube_http_request_total",
			Help: "HTTP requests to the local API server, by host, code and method.",
		}, []string{"host", "code", "method"}),
		duration: with.NewHistogramVec(prometheus.HistogramOpts{
			Name:    prefix + "_kube_http_request_duration_seconds",
			Help:    "Duration of HTTP requests to the local API server until the response header in seconds, by host and method.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"host", "method"}),
	}
}

// Wrap returns a transport that counts and times requests.
func (m *RequestMetrics) Wrap(next http.RoundTripper) http.RoundTripper {
	return &counted{metrics: m, next: next}
}

type counted struct {
	metrics *RequestMetrics
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	started := time.Now()
	response, err := c.next.RoundTrip(r)
	code := "<error>"
	if err == nil {
		code = strconv.Itoa(response.StatusCode)
	}
	c.metrics.requests.WithLabelValues(r.URL.Host, code, r.Method).Inc()
	c.metrics.duration.WithLabelValues(r.URL.Host, r.Method).Observe(time.Since(started).Seconds())
	return response, err
}

// WrappedRoundTripper implements client-go's RoundTripperWrapper.
func (c *counted) WrappedRoundTripper() http.RoundTripper { return c.next }
