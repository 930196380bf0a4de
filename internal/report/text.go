package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bytes formats a number of bytes: "999 B", "1.5 KiB".
func Bytes(n int64) string {
	const step = 1024
	if n < step {
		return strconv.FormatInt(n, 10) + " B"
	}
	value, unit := float64(n)/step, 0
	const units = "KMGTPE"
	// Use the next unit for what would be printed as 1024.0.
	for value >= step-0.05 && unit < len(units)-1 {
		value /= step
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

// Age formats the age of a time in its two largest units: "3s ago", "4m10s ago", "2d5h ago".
// Nil is "never".
func Age(now time.Time, at *time.Time) string {
	if at == nil {
		return "never"
	}
	const day = 24 * time.Hour
	// Not negative, if clocks were set or the report is newer than now.
	age := max(now.Sub(*at), 0)
	var text string
	switch {
	case age >= day:
		text = fmt.Sprintf("%dd%dh", age/day, age%day/time.Hour)
	case age >= time.Hour:
		text = fmt.Sprintf("%dh%dm", age/time.Hour, age%time.Hour/time.Minute)
	case age >= time.Minute:
		text = fmt.Sprintf("%dm%ds", age/time.Minute, age%time.Minute/time.Second)
	default:
		text = fmt.Sprintf("%ds", age/time.Second)
	}
	return text + " ago"
}

// Some joins names, the first five if there are more.
func Some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
