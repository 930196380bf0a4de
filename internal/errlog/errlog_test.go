package errlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func newLog() (*Log, *logtest.Buffer) {
	var out logtest.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return &Log{Logger: slog.New(handler), Level: slog.LevelWarn, Failing: "down", Over: "up again"}, &out
}

// TestTable is the table of Log, line by line.
func TestTable(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for name, tt := range map[string]struct {
		before, now error
		want        string
		changed     bool
	}{
		"success after success": {},
		"an error appears":      {now: a, want: "level=WARN msg=down node=n err=a\n", changed: true},
		"an error stays":        {before: a, now: errors.New("a"), want: "level=DEBUG msg=down node=n err=a\n"},
		"an error changes":      {before: a, now: b, want: "level=WARN msg=down node=n err=b\n", changed: true},
		"an error is over":      {before: a, want: "level=INFO msg=\"up again\" node=n\n", changed: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, out := newLog()
			l.Note(t.Context(), tt.before)
			out.Take()
			if changed := l.Note(t.Context(), tt.now, "node", "n"); changed != tt.changed {
				t.Errorf("changed: %t, want %t", changed, tt.changed)
			}
			if diff := cmp.Diff(tt.want, out.Take()); diff != "" {
				t.Errorf("logged (-want +got):\n%s", diff)
			}
			if got := l.Err(); !errors.Is(got, tt.now) && fmt.Sprint(got) != fmt.Sprint(tt.now) {
				t.Errorf("it says %v, want %v", got, tt.now)
			}
		})
	}
}

func TestKeysAreApart(t *testing.T) {
	l, out := newLog()
	ctx := t.Context()
	l.NoteOf(ctx, "2", errors.New("two"))
	l.NoteOf(ctx, "1", errors.New("one"))
	out.Take()
	if l.NoteOf(ctx, "3", nil) || out.Take() != "" {
		t.Error("success of one that never failed is logged")
	}
	if err := l.Err(); err == nil || err.Error() != "one\ntwo" {
		t.Errorf("it says %v, want both", err)
	}
	if !l.NoteOf(ctx, "1", nil) || out.Take() != "level=INFO msg=\"up again\"\n" {
		t.Error("the end of one isn't logged while another one lasts")
	}
	l.NoteOf(ctx, "2", nil)
	if err := l.Err(); err != nil || len(l.lasting) != 0 {
		t.Errorf("after the end of all it says %v and keeps %d", err, len(l.lasting))
	}
}

func TestKindsAndNoWordAtTheEnd(t *testing.T) {
	l, out := newLog()
	l.Over = ""
	l.Kind = func(err error) string { return strings.TrimRight(err.Error(), "0123456789") }
	l.Note(t.Context(), errors.New("port 1"))
	if out.Take(); l.Note(t.Context(), errors.New("port 2")) || !strings.HasPrefix(out.Take(), "level=DEBUG") {
		t.Error("an error of the same kind counts as a change")
	}
	if !l.Note(t.Context(), nil) || out.Take() != "" {
		t.Error("the end is not reported, or logged without a message")
	}
}

// TestQuietTime notes an error that keeps changing, as that of a connection does with its
// port. Its last form is logged after Quiet.
func TestQuietTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, out := newLog()
		l.Quiet = time.Minute
		for second := range 120 {
			l.Note(t.Context(), fmt.Errorf("port %d", min(second, 50)))
			time.Sleep(time.Second)
		}
		want := []string{"port 0", "port 50"}
		var got []string
		for _, m := range regexp.MustCompile(`(?m)^level=WARN msg=down err="(.*)"$`).FindAllStringSubmatch(out.Take(), -1) {
			got = append(got, m[1])
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("warned of (-want +got):\n%s", diff)
		}
		l.Note(t.Context(), nil)
		if !l.Note(t.Context(), errors.New("once more")) {
			t.Error("an error that comes back isn't logged")
		}
	})
}

// TestSince notes errors that change, end and return, of two operations.
func TestSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLog()
		began := time.Now()
		for _, step := range []struct {
			key  string
			err  error
			want time.Duration // since the begin; negative: zero
		}{
			{"a", nil, -1}, {"a", errors.New("x"), 1}, {"a", errors.New("y"), 1}, {"b", errors.New("x"), 1}, {"a", nil, 3}, {"b", nil, -1}, {"a", errors.New("x"), 6},
		} {
			l.NoteOf(t.Context(), step.key, step.err)
			if got := l.Since(); got.IsZero() != (step.want < 0) || step.want >= 0 && got.Sub(began) != step.want*time.Second {
				t.Errorf("%+v: since %v", step, got.Sub(began))
			}
			time.Sleep(time.Second)
		}
	})
}

// TestQuietAfterTheEnd notes an error that comes and goes, and finally persists.
func TestQuietAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, out := newLog()
		l.Quiet = time.Minute
		err := errors.New("a")
		for range 25 { // 50 s
			l.NoteOf(t.Context(), "1", err)
			time.Sleep(time.Second)
			l.NoteOf(t.Context(), "1", nil)
			time.Sleep(time.Second)
		}
		const debug = "level=DEBUG msg=down err=a\n"
		want := "level=WARN msg=down err=a\nlevel=INFO msg=\"up again\"\n" + strings.Repeat(debug, 24)
		if diff := cmp.Diff(want, out.Take()); diff != "" {
			t.Errorf("coming and going (-want +got):\n%s", diff)
		}
		if err := l.Err(); err != nil {
			t.Errorf("it says %v although it is over", err)
		}
		for range 4 { // 40 s
			l.NoteOf(t.Context(), "1", err)
			time.Sleep(10 * time.Second)
		}
		l.NoteOf(t.Context(), "1", nil)
		want = debug + "level=WARN msg=down err=a\n" + debug + debug + "level=INFO msg=\"up again\"\n"
		if diff := cmp.Diff(want, out.Take()); diff != "" {
			t.Errorf("staying (-want +got):\n%s", diff)
		}
		time.Sleep(time.Minute)
		l.NoteOf(t.Context(), "2", err)
		l.NoteOf(t.Context(), "2", nil)
		if len(l.lasting) != 1 {
			t.Errorf("%d are kept, want the one that was logged a moment ago", len(l.lasting))
		}
	})
}

func TestErrorsOfTheEndAreNotNoted(t *testing.T) {
	l, out := newLog()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if l.Note(ctx, context.Canceled) || l.Err() != nil || out.String() != "" {
		t.Errorf("the end of a context counts as an error: %v, %s", l.Err(), out)
	}
}

// TestLinesAreInOrder notes from many goroutines: an error and its end alternate.
func TestLinesAreInOrder(t *testing.T) {
	l, out := newLog()
	l.Kind = func(error) string { return "" }
	var notes sync.WaitGroup
	for range 8 {
		notes.Go(func() {
			for i := range 200 {
				var err error
				if i%2 == 0 {
					err = errors.New("x")
				}
				l.Note(context.Background(), err)
			}
		})
	}
	notes.Wait()
	l.Note(t.Context(), nil)
	before := "INFO"
	for line := range strings.Lines(out.String()) {
		level := strings.TrimPrefix(strings.Fields(line)[0], "level=")
		if level == "DEBUG" {
			level = "WARN"
			if before != level {
				t.Fatalf("a repetition of what was over: %s", line)
			}
			continue
		}
		if level == before {
			t.Fatalf("%s follows itself", level)
		}
		before = level
	}
	if before != "INFO" {
		t.Errorf("the last line is %s", before)
	}
}
