package cli

import (
	"io"
	"log"
	"log/slog"

	"k8s.io/klog/v2"
)

// DiscardLogs discards what libraries log: client-go's errors, requests and responses, at any verbosity, and
// what net/http writes to package log. The errors that they return are printed. Both loggers are global, so only
// main should call this.
func DiscardLogs() {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	log.SetOutput(io.Discard)
}
