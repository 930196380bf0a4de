package tunnel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
	"golang.zx2c4.com/wireguard/device"

	tun "github.com/kube-semaphore/kube-semaphore/tunnel/engine/link"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// engine is a userspace device: wireguard-go on a TUN link, and its socket. Of ours
// only link and udp are in the way of packets.
type engine struct {
	name   string
	index  int
	dev    *device.Device
	socket *socket

	closing atomic.Bool // we end it, it doesn't end on its own
	wg      sync.WaitGroup
}

// startEngine serves the TUN link that file is attached to, which must be up:
// otherwise wireguard-go sees it go up only up to a second later. It owns file
// and socket from here on, also when it returns an error. When the device ends
// on its own, because somebody deleted the link or reading from it broke, died
// is called.
func startEngine(l link, file *os.File, sock *socket, died func(), log *device.Logger) (*engine, error) {
	native, err := tun.New(file, l.mtu)
	if err != nil {
		sock.close()
		return nil, errors.Join(fmt.Errorf("%s: %w", l.name, err), file.Close())
	}
	e := &engine{
		name:   l.name,
		index:  l.index,
		dev:    device.NewDevice(native, udp.New(udp.Config{}), log),
		socket: sock,
	}
	sock.serve(e.dev)
	e.wg.Go(func() {
		<-e.dev.Wait()
		if !e.closing.Load() {
			died()
		}
	})
	return e, nil
}

// alive reports whether the device serves its link.
func (e *engine) alive() bool {
	select {
	case <-e.dev.Wait():
		return false
	default:
		return true
	}
}

// up opens the device's UDP sockets, if they aren't open. wireguard-go does so
// itself when the link goes up, but only once, and keeps the error to its log.
func (e *engine) up() error {
	if err := e.dev.Up(); err != nil {
		return fmt.Errorf("open UDP sockets: %w", explain(err))
	}
	return nil
}

// restoreSocket replaces a socket whose file somebody has removed.
func (e *engine) restoreSocket() (changed bool, err error) {
	if e.socket.inPlace() {
		return false, nil
	}
	fresh, err := listenSocket(e.name)
	if err != nil {
		return false, err
	}
	e.socket.close()
	e.socket = fresh
	e.socket.serve(e.dev)
	return true, nil
}

// close stops serving and waits for the goroutines that we started. The link
// stays.
func (e *engine) close() {
	e.closing.Store(true)
	e.dev.Close()
	e.socket.close()
	e.wg.Wait()
}

// Messages of wireguard-go let through: a burst, then one in two seconds. Some
// of them come once per packet, or per peer and handshake attempt.
const (
	engineLogRate  = 0.5
	engineLogBurst = 10
)

// engineLog passes wireguard-go's messages on: errors as warnings, because it
// recovers from them on its own, and the rest at debug level.
func engineLog(log *slog.Logger) *device.Logger {
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
	limit := rate.NewLimiter(engineLogRate, engineLogBurst)
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
