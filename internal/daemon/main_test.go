package daemon

import (
	"errors"
	"flag"
	"log/slog"
	"testing"
)

type settings struct{ level string }

func (s settings) Logging() (level, format string) { return s.level, "json" }

func TestMainReturnsTheExitCode(t *testing.T) {
	for name, tt := range map[string]struct {
		level   string
		load    error
		run     error
		started bool
		want    int
	}{
		"a run that ends well":    {level: "error", started: true, want: 0},
		"a run that fails":        {level: "error", run: errors.New("no device"), started: true, want: 1},
		"help":                    {load: flag.ErrHelp, want: 0},
		"a wrong configuration":   {load: errors.New("SEMAPHORE_REMOTES: is missing"), want: 2},
		"an unknown level of log": {level: "loud", want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			started := false
			code := Main("test",
				func([]string) (settings, []string, error) { return settings{tt.level}, nil, tt.load },
				func(settings, *slog.Logger) error {
					started = true
					return tt.run
				})
			if code != tt.want || started != tt.started {
				t.Errorf("code %d, started %v; want %d, %v", code, started, tt.want, tt.started)
			}
		})
	}
}
