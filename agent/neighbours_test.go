package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestNeighbourTables(t *testing.T) {
	const (
		header = "entries  allocs   destroys hash_grows lookups  hits     res_failed rcv_probes_mcast rcv_probes_ucast periodic_gc_runs forced_gc_runs unresolved_discards table_fulls\n"
		line   = "00000400 000001dd 000001e2 00000002   00000821 00000242 00000019   00000000         00000000         00000000         00000012       00000000            "
		help   = "# HELP semaphore_wg_neighbour_table_full_total How often the neighbour table of the node's kernel was full, so that packets were dropped; absent where the kernel doesn't expose it.\n" +
			"# TYPE semaphore_wg_neighbour_table_full_total counter\n"
		ipv4, ipv6 = `semaphore_wg_neighbour_table_full_total{family="ipv4"} `, `semaphore_wg_neighbour_table_full_total{family="ipv6"} `
	)
	for name, c := range map[string]struct {
		arp, ndisc string // empty: there is no such file
		want       string
	}{
		"all processors, in hexadecimal": {header + line + "0000001f\n" + line + "00000001\n", header + line + "00000000\n", help + ipv4 + "32\n" + ipv6 + "0\n"},
		"no IPv6":                        {header + line + "00000000\n", "", help + ipv4 + "0\n"},
		"not the first namespace":        {},
		"a kernel that doesn't count":    {strings.ReplaceAll(header, " table_fulls", "") + line + "\n", "", ""},
		"a line that is cut off":         {header + line + "\n", header + line + "00000002\n", help + ipv6 + "2\n"},
		"no number":                      {header + line + "many\n", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := fstest.MapFS{}
			for file, content := range map[string]string{"arp_cache": c.arp, "ndisc_cache": c.ndisc} {
				if content != "" {
					files[file] = &fstest.MapFile{Data: []byte(content)}
				}
			}
			if err := testutil.CollectAndCompare(newNeighbourCollector(files), strings.NewReader(c.want)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNeighbourTablesOfThisKernel reads this kernel's statistics in the initial network
// namespace, as the agent does; tests have their own namespace.
func TestNeighbourTablesOfThisKernel(t *testing.T) {
	const first = "/proc/1/net/stat"
	want := 0
	for _, file := range neighbourTables() {
		if _, err := os.Stat(filepath.Join(first, file)); err == nil {
			want++
		}
	}
	if want == 0 {
		t.Skip("NOT RUN: it needs root in the kernel's first network namespace, which alone has " + neighbourStats + "/arp_cache")
	}
	if got := testutil.CollectAndCount(newNeighbourCollector(os.DirFS(first))); got != want {
		t.Errorf("%d tables are counted of %d", got, want)
	}
}
