package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/kube-semaphore/kube-semaphore/e2e/kernel/wire"
)

// lifeVariable makes the test binary play qemu: it names the life of the
// machine that it plays.
const lifeVariable = "FAKE_MACHINE_LIFE"

func TestMain(m *testing.M) {
	if life := os.Getenv(lifeVariable); life != "" {
		os.Exit(playMachine(life, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// playMachine opens the two serial ports of its arguments, as qemu does, and
// lives.
func playMachine(life string, args []string) int {
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	var ports []*os.File
	for i, arg := range args {
		if arg == "-serial" {
			path, _ := strings.CutPrefix(args[i+1], "file:")
			port, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|os.O_CREATE, 0o600)
			if err != nil {
				panic(err)
			}
			ports = append(ports, port)
		}
	}
	say := func(m wire.Message) {
		if err := wire.Write(ports[1], m); err != nil {
			panic(err)
		}
	}
	if strings.Contains(life, "log") {
		fmt.Fprintln(ports[0], "the kernel's log")
	}
	if strings.Contains(life, "up") {
		say(wire.Message{Kind: wire.KindUp, Text: "a fake"})
	}
	switch {
	case strings.Contains(life, "hang"):
		<-time.After(time.Hour) // not for ever: Go would call that a deadlock
	case strings.Contains(life, "panic"):
		fmt.Fprint(ports[0], "Kernel pan")
		fmt.Fprint(ports[0], "ic - not syncing: Oops\n")
	case strings.Contains(life, "garbage"):
		fmt.Fprint(ports[1], "\x00\x00garbage\n")
		<-time.After(time.Hour) // not for ever: Go would call that a deadlock
	case strings.Contains(life, "refuse"):
		fmt.Fprintln(os.Stderr, "no such machine")
		return 1
	case strings.Contains(life, "busy"):
		// Here time is what is played, not a way to wait for something.
		for range 30 {
			time.Sleep(20 * time.Millisecond)
			say(wire.Message{Kind: wire.KindAlive})
		}
	}
	if strings.Contains(life, "done") {
		say(wire.Message{Kind: wire.KindDone})
	}
	return 0
}

func TestMachineSaysHowItEnded(t *testing.T) {
	for name, test := range map[string]struct {
		life string
		want error
		text string
	}{
		"as planned":                       {life: "log up done"},
		"busy for longer than any silence": {life: "up busy done"},
		"never up":                         {life: "log hang", want: errNotUp},
		"off before it was up":             {life: "log", want: errNotUp},
		"silent":                           {life: "log up hang", want: errHung},
		"panic":                            {life: "log up panic", want: errPanicked},
		"panic before it was up":           {life: "panic", want: errPanicked},
		"off before its plan ended":        {life: "up", want: errLost},
		"messages that are none":           {life: "up garbage", text: "garbage"},
		"qemu doesn't want":                {life: "refuse", text: "no such machine"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(lifeVariable, test.life)
			var console bytes.Buffer
			up := false
			m := fakeMachine(t)
			if strings.Contains(test.life, "hang") {
				m.silence = 200 * time.Millisecond
			}
			if errors.Is(test.want, errNotUp) {
				m.bootTimeout = 10 * time.Second // for a program that prints a line
			}
			err := m.run(context.Background(), &console, func(m wire.Message) { up = up || m.Kind == wire.KindUp })
			switch {
			case test.text != "":
				if err == nil || !strings.Contains(err.Error(), test.text) {
					t.Errorf("error %v, want one that says %q", err, test.text)
				}
			case !errors.Is(err, test.want):
				t.Errorf("error %v, want %v", err, test.want)
			}
			if want := strings.Contains(test.life, "up"); up != want {
				t.Errorf("up: %v, want %v", up, want)
			}
			if strings.Contains(test.life, "log") && !strings.Contains(console.String(), "the kernel's log") {
				t.Errorf("console: %q", console.String())
			}
		})
	}
}

func TestMachineDiesWithItsContext(t *testing.T) {
	t.Setenv(lifeVariable, "up hang")
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	err := fakeMachine(t).run(ctx, &bytes.Buffer{}, func(wire.Message) { cancel(stop) })
	if !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
}

func TestMachineThatDoesNotExist(t *testing.T) {
	m := fakeMachine(t)
	m.program = filepath.Join(t.TempDir(), "qemu")
	err := m.run(context.Background(), &bytes.Buffer{}, func(wire.Message) {})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
}

// fakeMachine is one whose limits no slow computer reaches by accident.
func fakeMachine(t *testing.T) machine {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return machine{program: executable, accel: accelTCG, bootTimeout: time.Minute, silence: time.Minute}
}

func TestSilenceCountsFromTheLastMessage(t *testing.T) {
	t.Setenv(lifeVariable, "up busy done")
	m := fakeMachine(t)
	m.bootTimeout, m.silence = 30*time.Second, 10*time.Second
	alive := 0
	err := m.run(context.Background(), &bytes.Buffer{}, func(m wire.Message) {
		if m.Kind == wire.KindAlive {
			alive++
		}
	})
	if err != nil || alive != 30 {
		t.Errorf("%d signs of life, %v", alive, err)
	}
}

func TestAccelerators(t *testing.T) {
	for name, test := range map[string]struct {
		choice string
		kvm    bool
		want   []string
		fail   bool
	}{
		"auto with hardware":    {choice: "auto", kvm: true, want: []string{"kvm", "tcg"}},
		"auto without hardware": {choice: "auto", want: []string{"tcg"}},
		"forced emulation":      {choice: "tcg", kvm: true, want: []string{"tcg"}},
		"forced hardware":       {choice: "kvm", want: []string{"kvm"}},
		"unknown":               {choice: "xen", fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := accelerators(test.choice, test.kvm)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err != nil) != test.fail {
				t.Errorf("error %v, want one: %v", err, test.fail)
			}
		})
	}
}

func TestVirtualizationIsReadFromTheFlags(t *testing.T) {
	for cpuinfo, want := range map[string]bool{
		"processor\t: 0\nflags\t\t: fpu vmx sse\n":          true,
		"flags\t\t: fpu svm\n":                              true,
		"flags\t\t: fpu svm_lock\nbugs\t\t: vmx\n":          false,
		"vmx flags\t: vnmi\nmodel name\t: svm vmx\nflags: ": false,
		"": false,
	} {
		if got := virtualizes(cpuinfo); got != want {
			t.Errorf("%q: %v, want %v", cpuinfo, got, want)
		}
	}
	if usableKVM("flags: vmx", filepath.Join(t.TempDir(), "kvm")) {
		t.Error("a device that doesn't exist is usable")
	}
	if usableKVM("flags: vmx", os.DevNull) {
		t.Error("a device that makes no machines is usable")
	}
}
