package run

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

// Configured is the part of a configuration that Program.Main uses.
type Configured interface {
	// Logging returns the level and the format of the log, see process.NewLogger.
	Logging() (level, format string)
}

// Program describes a program to Main.
type Program[C Configured] struct {
	Name string
	// Load reads the configuration from the arguments and the environment. It returns
	// flag.ErrHelp after -help or -version.
	Load func(args []string) (cfg C, warnings []string, err error)
	// Run runs the program, until it is terminated or done.
	Run func(cfg C, log *slog.Logger) error
	// Status runs the command "status" with the arguments after it, and returns the exit
	// code. Nil: no such command.
	Status func(args []string) int
	// Probe runs the command "probe". Nil: no such command.
	Probe func(args []string) int
}

// Main runs the program with the arguments after its name, and returns the exit code: that
// of Status or Probe for these commands, else process.ExitWell, ExitFaults if Run failed, or
// ExitUsage for an invalid configuration.
func (p Program[C]) Main(args []string) int {
	if len(args) > 0 && args[0] == "status" && p.Status != nil {
		return p.Status(args[1:])
	}
	if len(args) > 0 && args[0] == "probe" && p.Probe != nil {
		return p.Probe(args[1:])
	}
	cfg, warnings, err := p.Load(args)
	if errors.Is(err, flag.ErrHelp) {
		return process.ExitWell
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: configuration:\n%v\n", p.Name, err)
		return process.ExitUsage
	}
	level, format := cfg.Logging()
	log, err := process.NewLogger(os.Stderr, level, format)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		return process.ExitUsage
	}
	AdoptClientLogs(log)
	process.LimitMemory(log)
	for _, w := range warnings {
		log.Warn("configuration", "warning", w)
	}
	if err := p.Run(cfg, log); err != nil {
		log.Error("ended", "err", err)
		return process.ExitFaults
	}
	return process.ExitWell
}
