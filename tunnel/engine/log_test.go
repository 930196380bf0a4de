package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/resume"
)

func TestDeviceLogIsLimited(t *testing.T) {
	var out logtest.Buffer
	log := deviceLog(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 1000 {
		log.Errorf("peer %d is not reachable", i)
		log.Verbosef("packet %d", i)
	}
	text := out.Take()
	if lines := strings.Count(text, "\n"); lines != logBurst {
		t.Errorf("%d lines, want %d:\n%s", lines, logBurst, text)
	}
	if !strings.Contains(text, "level=WARN") || strings.Contains(text, "packet") {
		t.Errorf("log:\n%s", text)
	}
}

func TestDeviceLogPassesDebugMessagesOnWhenAsked(t *testing.T) {
	var out logtest.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})
	if !handler.Enabled(context.Background(), slog.LevelDebug) {
		t.Fatal("the handler drops debug messages")
	}
	deviceLog(slog.New(handler)).Verbosef("packet %d", 7)
	if text := out.Take(); !strings.Contains(text, "packet 7") {
		t.Errorf("log: %q", text)
	}
}

// wireguard-go logs the rest of a refused request, which may contain keys.
func TestRefusedRequestsDoNotShowKeys(t *testing.T) {
	var out logtest.Buffer
	dev := device.NewDevice(resume.NewTun(tuntest.NewChannelTUN().TUN()), conn.NewDefaultBind(), deviceLog(slog.New(slog.NewTextHandler(&out, nil))))
	defer dev.Close()
	secret := strings.Repeat("c0ffee00", 8)
	for _, request := range []string{
		"set=1\nlisten_port=none\nprivate_key=" + secret + "\n\n",
		"set=1\nprivate_key " + secret + "\n\n",
		"get=1\nprivate_key=" + secret + "\n\n",
		"private_key=" + secret + "\n\n",
		"set=1\nprivate_key=" + secret[1:] + "\n\n",
		"set=1\npublic_key=" + secret + "g\n\n",
	} {
		ours, theirs := net.Pipe()
		var handling sync.WaitGroup
		handling.Go(func() { dev.IpcHandle(theirs) })
		handling.Go(func() { _, _ = io.Copy(io.Discard, ours) })
		_, err := io.WriteString(ours, request)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
		_ = ours.Close()
		handling.Wait()
		// The supervisor parses the request, too.
		if err := newModel().set(strings.NewReader(request)); err != nil && strings.Contains(err.Error(), secret[:16]) {
			t.Errorf("a key is in an error: %v", err)
		}
	}
	log := out.Take()
	if strings.Contains(log, secret[:16]) {
		t.Errorf("a key is logged:\n%s", log)
	}
	if strings.Count(log, "(hidden)") < 2 {
		t.Errorf("the requests were not logged at all:\n%s", log)
	}
}
