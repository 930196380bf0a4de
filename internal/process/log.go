// Package process has what all programs need: a logger, memory limits and the version. It
// doesn't link Kubernetes code.
package process

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// NewLogger returns a logger that writes to w. The level is debug, info, warn or error; the
// format is json or text, in any case. All text is made printable, as it may come from other clusters.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, error) {
	options := slog.HandlerOptions{ReplaceAttr: printableAttr}
	switch strings.ToLower(level) {
	case "debug":
		options.Level = slog.LevelDebug
	case "info":
		options.Level = slog.LevelInfo
	case "warn":
		options.Level = slog.LevelWarn
	case "error":
		options.Level = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q is not one of debug, info, warn and error", level)
	}
	switch strings.ToLower(format) {
	case "json":
		return slog.New(slog.NewJSONHandler(w, &options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, &options)), nil
	default:
		return nil, fmt.Errorf("log format %q is neither json nor text", format)
	}
}

// maxLogText is the maximum number of logged characters of one text.
const maxLogText = 2000

// printableAttr makes an attribute of any type printable.
func printableAttr(_ []string, attr slog.Attr) slog.Attr {
	switch attr.Value.Kind() {
	case slog.KindString:
		attr.Value = slog.StringValue(printable.Text(attr.Value.String(), maxLogText))
	case slog.KindAny:
		switch value := attr.Value.Any().(type) {
		case error:
			attr.Value = slog.StringValue(printable.Text(value.Error(), maxLogText))
		case []string:
			attr.Value = slog.AnyValue(printableTexts(value))
		default:
			text, err := json.Marshal(value)
			if err != nil || printable.Text(string(text), maxLogText) != string(text) {
				attr.Value = slog.StringValue(printable.Text(fmt.Sprint(value), maxLogText))
			}
		}
	}
	return attr
}

func printableTexts(texts []string) []string {
	const most = 100
	var shown []string
	for _, text := range texts[:min(len(texts), most)] {
		shown = append(shown, printable.Text(text, printable.Short))
	}
	if len(texts) > most {
		shown = append(shown, fmt.Sprintf("... (%d)", len(texts)))
	}
	return shown
}
