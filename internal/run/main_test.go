package run

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"testing"
)

type settings struct{ level string }

func (s settings) Logging() (level, format string) { return s.level, "json" }

func TestMainReturnsTheExitCode(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		level string
		load  error
		run   error
		did   string // the last thing that it did
		want  int
	}{
		"a run that ends well":          {level: "error", did: "run", want: 0},
		"a run that fails":              {level: "error", run: errors.New("no device"), did: "run", want: 1},
		"help":                          {load: flag.ErrHelp, did: "load []", want: 0},
		"a wrong configuration":         {load: errors.New("SEMAPHORE_REMOTES: is missing"), did: "load []", want: 64},
		"an unknown level of log":       {level: "loud", did: "load []", want: 64},
		"status, without configuration": {args: []string{"status", "-o", "json"}, load: errors.New("missing"), did: "status [-o json]", want: 7},
		"probe, without configuration":  {args: []string{"probe", "/readyz"}, load: errors.New("missing"), did: "probe [/readyz]", want: 8},
		"status as the value of a flag": {args: []string{"-node-name", "status"}, load: flag.ErrHelp, did: "load [-node-name status]", want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			did := ""
			program := Program[settings]{
				Name: "test",
				Load: func(args []string) (settings, []string, error) {
					did = fmt.Sprint("load ", args)
					return settings{tt.level}, nil, tt.load
				},
				Run: func(settings, *slog.Logger) error {
					did = "run"
					return tt.run
				},
				Status: func(args []string) int {
					did = fmt.Sprint("status ", args)
					return 7
				},
				Probe: func(args []string) int {
					did = fmt.Sprint("probe ", args)
					return 8
				},
			}
			if code := program.Main(tt.args); code != tt.want || did != tt.did {
				t.Errorf("code %d after %q; want %d after %q", code, did, tt.want, tt.did)
			}
		})
	}
}
