package engine

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"sync/atomic"

	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/device"
)

// Messages of wireguard-go let through: a burst, then one in two seconds. Some
// of them come once per packet, or per peer and handshake attempt.
const (
	logRate  = 0.5
	logBurst = 10
)

// deviceLog passes wireguard-go's messages on: errors as warnings, because it
// recovers from them on its own, and the rest at debug level.
func deviceLog(log *slog.Logger) *device.Logger {
	logger := &device.Logger{Verbosef: device.DiscardLogf, Errorf: limited(log)}
	if log.Enabled(context.Background(), slog.LevelDebug) {
		logger.Verbosef = func(format string, args ...any) {
			log.Debug("wireguard-go says", "message", fmt.Sprintf(format, args...))
		}
	}
	return logger
}

func limited(log *slog.Logger) func(string, ...any) {
	// Of a request that it can't read, wireguard-go logs the rest, which may
	// hold private and preshared keys in hexadecimal.
	secret := regexp.MustCompile(`[0-9A-Fa-f]{16,}`)
	limit := rate.NewLimiter(logRate, logBurst)
	var suppressed atomic.Int64
	return func(format string, args ...any) {
		if !limit.Allow() {
			suppressed.Add(1)
			return
		}
		text := secret.ReplaceAllLiteralString(fmt.Sprintf(format, args...), "(hidden)")
		attrs := []any{"err", text}
		if n := suppressed.Swap(0); n > 0 {
			attrs = append(attrs, "suppressed", n)
		}
		log.Warn("wireguard-go reports a problem", attrs...)
	}
}
