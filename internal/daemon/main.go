package daemon

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
)

// Exit codes of the programs.
const (
	exitFailed        = 1
	exitMisconfigured = 2
)

// Configured is a configuration as far as Main reads it.
type Configured interface {
	// Logging returns the level and the format of the log, see NewLogger.
	Logging() (level, format string)
}

// Main is what the main functions of the programs share: load reads the
// configuration from the command's arguments and from the environment, and run
// does the work until the process ends. It returns the exit code: 0, 1 when run
// failed, 2 for a configuration that can't be used. load returns flag.ErrHelp
// when all that was asked for has been printed.
func Main[C Configured](name string, load func(args []string) (cfg C, warnings []string, err error), run func(cfg C, log *slog.Logger) error) int {
	cfg, warnings, err := load(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: configuration:\n%v\n", name, err)
		return exitMisconfigured
	}
	level, format := cfg.Logging()
	log, err := NewLogger(os.Stderr, level, format)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return exitMisconfigured
	}
	AdoptClientLogs(log)
	for _, w := range warnings {
		log.Warn("configuration", "warning", w)
	}
	if err := run(cfg, log); err != nil {
		log.Error("ended", "err", err)
		return exitFailed
	}
	return 0
}
