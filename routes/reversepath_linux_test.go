package routes

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestConsiderMarks(t *testing.T) {
	for name, test := range map[string]struct{ all, link, want string }{
		"off":               {"0", "0", "0"},
		"strict":            {"0", "1", "1"},
		"strict for all":    {"1", "0", "1"},
		"loose":             {"0", "2", "0"},
		"loose is stronger": {"2", "1", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				index := addDevice(t, "eth0.7")
				const conf = "/proc/sys/net/ipv4/conf/"
				must(t, os.WriteFile(conf+"all/rp_filter", []byte(test.all), 0))
				must(t, os.WriteFile(conf+"eth0.7/rp_filter", []byte(test.link), 0))
				for range 2 {
					_, err := ConsiderMarks(slog.New(slog.DiscardHandler), []int{index, 4711})
					must(t, err)
				}
				got, err := os.ReadFile(conf + "eth0.7/src_valid_mark")
				must(t, err)
				if strings.TrimSpace(string(got)) != test.want {
					t.Errorf("src_valid_mark is %s, want %s", got, test.want)
				}
			})
		})
	}
}
