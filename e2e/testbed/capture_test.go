package testbed_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

func netlinkNet(prefix netip.Prefix) (net.IP, *net.IPNet, error) {
	return net.ParseCIDR(prefix.String())
}

func TestCaptureClassifiesPackets(t *testing.T) {
	p := startPair(t)
	capture, err := p.tb.Capture()
	if err != nil {
		t.Fatal(err)
	}
	before, err := capture.Counts(quick(t))
	if err != nil {
		t.Fatal(err)
	}
	// since returns the counts since its last call.
	since := func(t *testing.T) testbed.Counts {
		t.Helper()
		now, err := capture.Counts(quick(t))
		if err != nil {
			t.Fatal(err)
		}
		if now.Dropped > 0 {
			t.Errorf("the capture missed %d packets", now.Dropped)
		}
		counts := now.Sub(before)
		before = now
		return counts
	}

	t.Run("within a cluster is local", func(t *testing.T) {
		mustGet(t, p.aws1, p.aws2)
		if err := p.aws1.Node.Ping(quick(t), p.aws2.Addresses[0]); err != nil {
			t.Error(err)
		}
		if counts := since(t); counts.Local.Packets == 0 || counts.Plaintext.Packets > 0 {
			t.Errorf("%s, want local and no plaintext", counts)
		}
	})

	t.Run("a request into the void is plaintext", func(t *testing.T) {
		for i, url := range p.gcp1.URLs(80) {
			// On a busy machine a short request may end before it has begun.
			err := testbed.Wait(quick(t), "plaintext to "+url, func(context.Context) error {
				if _, err := p.aws1.Get(silence(t), url); err == nil {
					t.Error("answered")
				}
				if counts := since(t); counts.Plaintext.Packets == 0 {
					return errors.New(counts.String())
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			found := false
			for _, sample := range capture.Plaintext() {
				found = found || strings.Contains(sample, p.aws1.Node.Name) && strings.Contains(sample, p.gcp1.Addresses[i].String())
			}
			if !found {
				t.Errorf("no sample names the node and the pod: %q", capture.Plaintext())
			}
		}
	})

	t.Run("WireGuard messages", func(t *testing.T) {
		for i, to := range p.gcp1.Node.Addresses() {
			conn, err := p.aws1.Node.Dial(quick(t), "udp", netip.AddrPortFrom(to, uint16(51820+i)).String())
			if err != nil {
				t.Fatal(err)
			}
			for _, message := range [][]byte{{1, 0, 0, 0}, {4, 0, 0, 0, 9}, {5, 0, 0, 0}, {1, 2, 0, 0}} {
				if _, err := conn.Write(append(message, make([]byte, 60)...)); err != nil {
					// A refused earlier one is reported here.
					t.Logf("write: %v", err)
					if _, err := conn.Write(append(message, make([]byte, 60)...)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if counts := since(t); counts.WireGuard.Packets != 4 || counts.WireGuard.Bytes < 4*64 || counts.Plaintext.Packets > 0 {
			t.Errorf("%s (%d bytes), want 4 WireGuard", counts, counts.WireGuard.Bytes)
		}
	})

	t.Run("the API", func(t *testing.T) {
		conn, err := p.aws1.Node.Dial(quick(t), "tcp", strings.TrimPrefix(p.aws.APIURL(), "https://"))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if counts := since(t); counts.API.Packets < 3 || counts.Plaintext.Packets > 0 {
			t.Errorf("%s, want API", counts)
		}
	})

	t.Run("a request over a plain route is plaintext", func(t *testing.T) {
		route(t, p.aws1.Node, p.gcp1.Node)
		route(t, p.gcp1.Node, p.aws1.Node)
		mustGet(t, p.aws1, p.gcp1)
		// At least two handshakes, two requests, two answers, and their ends, some of
		// which may be delayed.
		if counts := since(t); counts.Plaintext.Packets < 12 || counts.WireGuard.Packets > 0 {
			t.Errorf("%s, want plaintext only", counts)
		}
	})

	t.Run("many packets are all counted", func(t *testing.T) {
		const packets = 20000
		sink, err := p.gcp1.Node.Dial(quick(t), "udp", netip.AddrPortFrom(p.aws1.Node.Addresses()[0], 9).String())
		if err != nil {
			t.Fatal(err)
		}
		source, err := p.aws1.Node.Dial(quick(t), "udp", netip.AddrPortFrom(p.aws2.Node.Addresses()[0], 9).String())
		if err != nil {
			t.Fatal(err)
		}
		sent := 0
		for range packets {
			for _, conn := range []net.Conn{sink, source} {
				if _, err := conn.Write(make([]byte, 1200)); err == nil {
					sent++
				}
			}
		}
		// Refusals come back, so at least those that were sent.
		if counts := since(t); counts.Other.Packets < int64(sent) || sent < packets {
			t.Errorf("%s, want at least the %d that were sent", counts, sent)
		}
	})
	if err := capture.Close(); err != nil {
		t.Error(err)
	}
	if _, err := capture.Counts(deadline(t, time.Second)); err == nil {
		t.Error("a closed capture counts")
	}
}
