package tokens

import (
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector collects when tokens were issued and when they expire, from the token files,
// which are read at each scrape. A missing file, and a token that never expires, have no
// values.
type Collector struct {
	files           map[string]string
	issued, expires *prometheus.Desc
}

// NewCollector takes the prefix of the metrics' names, and the token files by remote.
func NewCollector(prefix string, files map[string]string) *Collector {
	return &Collector{
		files: files,
		issued: prometheus.NewDesc(prefix+"_remote_token_issued_timestamp_seconds",
			"When the token for the remote's API server was issued.", []string{"cluster"}, nil),
		expires: prometheus.NewDesc(prefix+"_remote_token_expiry_timestamp_seconds",
			"When the token for the remote's API server expires.", []string{"cluster"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptors chan<- *prometheus.Desc) {
	descriptors <- c.issued
	descriptors <- c.expires
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for cluster, file := range c.files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // requests with the token fail and are logged
		}
		claims, err := Parse(strings.TrimSpace(string(content)))
		if err != nil || claims.Expires.IsZero() {
			continue
		}
		metrics <- prometheus.MustNewConstMetric(c.issued, prometheus.GaugeValue, float64(claims.Issued.Unix()), cluster)
		metrics <- prometheus.MustNewConstMetric(c.expires, prometheus.GaugeValue, float64(claims.Expires.Unix()), cluster)
	}
}
