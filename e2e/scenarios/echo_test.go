package scenarios_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// echo is a TCP connection between pods of two clusters to a server that sends back what
// it gets.
type echo struct{ net.Conn }

func dialEcho(t *testing.T, from, to *testbed.Pod) echo {
	t.Helper()
	listener, err := to.Listen(t.Context(), "tcp", netip.AddrPortFrom(to.Addresses[0], 0).String())
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed at the end of the test
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	port := netip.MustParseAddrPort(listener.Addr().String()).Port()
	conn, err := from.Dial(within(t, repair), "tcp", netip.AddrPortFrom(to.VirtualAddresses()[0], port).String())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return echo{conn}
}

func (e echo) send(text string) error {
	_, err := io.WriteString(e, text)
	return err
}

func (e echo) receive(text string) error {
	if err := e.SetReadDeadline(time.Now().Add(repair)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(e, got); err != nil {
		return fmt.Errorf("receive %q: %w", text, err)
	}
	if string(got) != text {
		return fmt.Errorf("received %q, want %q", got, text)
	}
	return nil
}

func (e echo) exchange(text string) error {
	if err := e.send(text); err != nil {
		return err
	}
	return e.receive(text)
}
