package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// neighbourStats is the directory of the kernel's statistics of its neighbour tables. They
// cover all network namespaces, and exist in the initial namespace, that of the node, only.
const neighbourStats = "/proc/net/stat"

// neighbourTables returns the file names of the statistics by address family.
func neighbourTables() map[string]string {
	return map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"}
}

// neighbourCollector reads the overflows of the neighbour tables at each scrape.
type neighbourCollector struct {
	stats fs.FS // of neighbourStats
	full  *prometheus.Desc
}

func newNeighbourCollector(stats fs.FS) *neighbourCollector {
	return &neighbourCollector{stats: stats, full: prometheus.NewDesc("semaphore_wg_neighbour_table_full_total",
		"How often the neighbour table of the node's kernel was full, so that packets were dropped; absent where the kernel doesn't expose it.", []string{"family"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *neighbourCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.full }

// Collect implements prometheus.Collector.
func (c *neighbourCollector) Collect(ch chan<- prometheus.Metric) {
	for family, name := range neighbourTables() {
		content, err := fs.ReadFile(c.stats, name)
		if err != nil {
			continue // No IPv6, or not the initial network namespace.
		}
		if full, err := tableFull(content); err == nil {
			ch <- prometheus.MustNewConstMetric(c.full, prometheus.CounterValue, float64(full), family)
		}
	}
}

// tableFull sums the column table_fulls: a line of names, then a line per processor, in
// hexadecimal (net/core/neighbour.c, neigh_stat_seq_show).
func tableFull(content []byte) (sum uint64, err error) {
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Scan()
	const name = "table_fulls"
	column := slices.Index(strings.Fields(lines.Text()), name)
	if column < 0 {
		return 0, fmt.Errorf("no column %s in %q", name, lines.Text())
	}
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= column {
			return 0, fmt.Errorf("no column %s in %q", name, lines.Text())
		}
		count, err := strconv.ParseUint(fields[column], 16, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		sum += count
	}
	return sum, lines.Err()
}
