package run

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// Exit codes of the programs.
const (
	exitFailed        = 1
	exitMisconfigured = 2
)

// Configured is a configuration as far as Program.Main reads it.
type Configured interface {
	// Logging returns the level and the format of the log, see process.NewLogger.
	Logging() (level, format string)
}

// Program is one of the programs, as its main function hands it to Main.
type Program[C Configured] struct {
	Name string
	// Load reads the configuration from the command's arguments and from the
	// environment. It returns flag.ErrHelp when all that was asked for has been
	// printed.
	Load func(args []string) (cfg C, warnings []string, err error)
	// Run does the work, until the process ends or until it is done.
	Run func(cfg C, log *slog.Logger) error
	// Status answers the word "status" in front of the arguments, which are
	// those behind it, and returns the exit code. Nil: the program doesn't go on
	// working, and has none.
	Status func(args []string) int
	// Probe is what Status is for the word "probe". Nil: the program has none.
	Probe func(args []string) int
}

// Main does what the command line asks for. args are the arguments without the
// program's name. It returns the exit code: that of Status or Probe where the first of
// them asks for it; else 0, 1 when Run failed, 2 for a configuration that can't
// be used.
func (p Program[C]) Main(args []string) int {
	if len(args) > 0 && args[0] == "status" && p.Status != nil {
		return p.Status(args[1:])
	}
	if len(args) > 0 && args[0] == "probe" && p.Probe != nil {
		return p.Probe(args[1:])
	}
	cfg, warnings, err := p.Load(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: configuration:\n%v\n", p.Name, err)
		return exitMisconfigured
	}
	level, format := cfg.Logging()
	log, err := process.NewLogger(os.Stderr, level, format)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		return exitMisconfigured
	}
	AdoptClientLogs(log)
	process.LimitMemory(log)
	for _, w := range warnings {
		log.Warn("configuration", "warning", w)
	}
	if err := p.Run(cfg, log); err != nil {
		log.Error("ended", "err", err)
		return exitFailed
	}
	return 0
}
