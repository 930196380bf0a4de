package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

func TestNewLoggerLevels(t *testing.T) {
	for level, want := range map[string]string{
		"debug": "debug info warn error",
		"info":  "info warn error",
		"warn":  "warn error",
		"error": "error",
	} {
		t.Run(level, func(t *testing.T) {
			var out bytes.Buffer
			log, err := NewLogger(&out, level, "json")
			if err != nil {
				t.Fatal(err)
			}
			log.Debug("debug")
			log.Info("info")
			log.Warn("warn")
			log.Error("error")
			var got []string
			for line := range strings.Lines(out.String()) {
				var record struct{ Msg string }
				if err := json.Unmarshal([]byte(line), &record); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				got = append(got, record.Msg)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("logged %v, want %v", got, want)
			}
		})
	}
}

func TestNewLoggerFormatForPeople(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLogger(&out, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello", "cluster", "gcp")
	if got := out.String(); !strings.Contains(got, "msg=hello cluster=gcp") {
		t.Errorf("logged %q", got)
	}
}

// TestNewLoggerIgnoresCase: other programs accept settings in capitals, which the engine has from one ConfigMap
// with them.
func TestNewLoggerIgnoresCase(t *testing.T) {
	if _, err := NewLogger(new(bytes.Buffer), "DEBUG", "Json"); err != nil {
		t.Error(err)
	}
}

func TestNewLoggerRefusesUnknownNames(t *testing.T) {
	if _, err := NewLogger(new(bytes.Buffer), "loud", "json"); err == nil || !strings.Contains(err.Error(), `"loud"`) {
		t.Errorf("level loud: %v", err)
	}
	if _, err := NewLogger(new(bytes.Buffer), "info", "xml"); err == nil || !strings.Contains(err.Error(), `"xml"`) {
		t.Errorf("format xml: %v", err)
	}
}

func TestLogIsPrintable(t *testing.T) {
	hostile := "\x1b[2J\u202e\u009b\n{\"level\":\"INFO\"}" + strings.Repeat("x", 10*maxLogText)
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log, err := NewLogger(&out, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		//nolint:sloglint // The message is what is tested.
		log.With("node", hostile).WithGroup("g").Log(t.Context(), slog.LevelWarn, hostile, "err", errors.New(hostile),
			"examples", []string{hostile}, "other", struct{ Name string }{hostile}, slog.Group("in", "text", hostile))
		got := out.String()
		if strings.Count(got, "\n") != 1 || strings.IndexFunc(strings.TrimSuffix(got, "\n"), func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
			t.Errorf("%s: logged %q", format, got)
		}
		if len(got) > 7*2*maxLogText {
			t.Errorf("%s: logged %d bytes", format, len(got))
		}
	}
}
