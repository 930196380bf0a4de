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

// Limits of wireguard-go's messages, per second and in a burst: some are logged for each
// packet, or for each peer and handshake attempt.
const (
	logRate  = 0.5
	logBurst = 10
)

// deviceLog returns a logger for wireguard-go that logs errors as warnings, because
// wireguard-go recovers from them, and other messages at debug level.
func deviceLog(log *slog.Logger) *device.Logger {
	logger := &device.Logger{Verbosef: device.DiscardLogf, Errorf: limited(log)}
	if log.Enabled(context.Background(), slog.LevelDebug) {
		logger.Verbosef = func(format string, args ...any) {
			log.Debug("wireguard-go", "message", fmt.Sprintf(format, args...))
		}
	}
	return logger
}

func limited(log *slog.Logger) func(string, ...any) {
	// wireguard-go logs the rest of a request that it can't parse, which may contain
	// private and preshared keys in hexadecimal.
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
		log.Warn("wireguard-go reported an error", attrs...)
	}
}
