package report

import (
	"strings"
	"testing"
	"time"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 5 << 30: "5.0 GiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]string{
		-time.Hour: "0s ago", 999 * time.Millisecond: "0s ago", 59 * time.Second: "59s ago",
		250 * time.Second: "4m10s ago", 3 * time.Hour: "3h0m ago", 53 * time.Hour: "2d5h ago",
	} {
		at := now.Add(-age)
		if got := Age(now, &at); got != want {
			t.Errorf("%v: got %q, want %q", age, got, want)
		}
	}
	if got := Age(now, nil); got != "never" {
		t.Errorf("nil: got %q, want never", got)
	}
}

func TestSome(t *testing.T) {
	if got, want := Some([]string{"a", "b"}), "a, b"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Some(strings.Split("a b c d e f g", " ")), "a, b, c, d, e and 2 more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
