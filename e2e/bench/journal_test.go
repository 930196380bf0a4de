package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/conn/bindtest"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
)

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestJournalReadsWholeLinesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, `{"msg":"of an earlier run"}`+"\n")
	log, err := newJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		append string
		want   []entry
	}{
		{"", nil},
		{`{"msg":"one"}` + "\n" + `{"msg":"tw`, []entry{{Msg: "one"}}},
		{`o","added":7}` + "\n", []entry{{Msg: "two", Added: 7}}},
		{"", nil},
		{`{"msg":"three"}` + "\nSIGQUIT: quit\n\n" + `{"msg":"four"}` + "\n", []entry{{Msg: "three"}, {Msg: "four"}}},
	} {
		appendTo(t, path, step.append)
		got, err := log.read()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("after %q: %s", step.append, diff)
		}
	}
}

func TestJournalOfALogThatIsNotThereYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	log, err := newJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := log.read(); err != nil || got != nil {
		t.Errorf("read %v, %v", got, err)
	}
	appendTo(t, path, "{}\n")
	if got, err := log.read(); err != nil || len(got) != 1 {
		t.Errorf("read %v, %v", got, err)
	}
}

func TestWaitAddedCountsOverSeveralPasses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	appendTo(t, path, `{"time":"2026-01-02T03:04:05.6Z","msg":"peers changed","added":2}`+"\n"+
		`{"time":"2026-01-02T03:04:06Z","msg":"peers changed","added":3}`+"\n")
	log := &journal{path: path}
	at, err := log.waitAdded(t.Context(), 5)
	if want := time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC); err != nil || !at.Equal(want) {
		t.Errorf("waited until %v, %v; want %v", at, err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (&journal{path: path}).waitAdded(ctx, 6); err == nil {
		t.Error("6 peers found where 5 were added")
	}
}

// What the count of touched peers rests on is the text of wireguard-go's log, so
// a real device writes it here, as the agent does.
func TestWritesUnderstandsWireguardGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	logger, err := process.NewLogger(file, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	binds := bindtest.NewChannelBinds()
	dev := device.NewDevice(tuntest.NewChannelTUN().TUN(), binds[0], &device.Logger{
		Verbosef: func(format string, args ...any) {
			logger.Info("wireguard-go", "message", fmt.Sprintf(format, args...))
		},
		Errorf: t.Errorf,
	})
	defer dev.Close()
	secret, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	key := secret.PublicKey()
	if err := dev.IpcSet(fmt.Sprintf("public_key=%x\nallowed_ip=10.0.0.0/24\n", key[:])); err != nil {
		t.Fatal(err)
	}
	if err := dev.IpcSet(fmt.Sprintf("public_key=%x\nremove=true\n", key[:])); err != nil {
		t.Fatal(err)
	}
	entries, err := (&journal{path: path}).read()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range writes(entries) {
		if w.peer != shortKey(key) || w.at.IsZero() {
			t.Errorf("%+v isn't of peer %s", w, shortKey(key))
		}
		got = append(got, w.what)
	}
	if diff := cmp.Diff([]string{"Created", "Adding allowedip", "Removing"}, got); diff != "" {
		t.Error(diff)
	}
}
