package daemon

import (
	"fmt"
	"io"
	"log/slog"

	"k8s.io/klog/v2"
)

// NewLogger returns a logger that writes to w. The level is one of debug,
// info, warn and error; the format is json, for machines, or text, for people.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	var options slog.HandlerOptions
	switch level {
	case "debug":
		options.Level = slog.LevelDebug
	case "info":
		options.Level = slog.LevelInfo
	case "warn":
		options.Level = slog.LevelWarn
	case "error":
		options.Level = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q is none of debug, info, warn and error", level)
	}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, &options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, &options)), nil
	default:
		return nil, fmt.Errorf("log format %q is neither json nor text", format)
	}
}

// AdoptClientLogs sends what the Kubernetes client library logs on its own
// account to log, too. That library has one logger for the process, so that
// only main should call this, before it starts anything.
func AdoptClientLogs(log *slog.Logger) { klog.SetSlogLogger(log.With("source", "client-go")) }
