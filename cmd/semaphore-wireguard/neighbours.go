package main

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

// neighbourStats is where the kernel counts what became of its tables of neighbours, those
// of all network namespaces. It shows that in the first namespace only, the node's.
const neighbourStats = "/proc/net/stat"

// neighbourTables are the kernel's, by the family of addresses.
func neighbourTables() map[string]string {
	return map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"}
}

// neighbourCollector reads how often a table of neighbours was full when it is asked for.
type neighbourCollector struct {
	stats fs.FS // of neighbourStats
	full  *prometheus.Desc
}

func newNeighbourCollector(stats fs.FS) *neighbourCollector {
	return &neighbourCollector{stats: stats, full: prometheus.NewDesc("semaphore_wg_neighbour_table_full_total",
		"How often the node's kernel had no room for another neighbour, whose packets it threw away; absent where it doesn't say.", []string{"family"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *neighbourCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.full }

// Collect implements prometheus.Collector.
func (c *neighbourCollector) Collect(ch chan<- prometheus.Metric) {
	for family, name := range neighbourTables() {
		content, err := fs.ReadFile(c.stats, name)
		if err != nil {
			continue // Without IPv6, or in a namespace that isn't the first one.
		}
		if full, err := tableFull(content); err == nil {
			ch <- prometheus.MustNewConstMetric(c.full, prometheus.CounterValue, float64(full), family)
		}
	}
}

// tableFull adds up a column of such a file: names, then a line for each processor, in
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
