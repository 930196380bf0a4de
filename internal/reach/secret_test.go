package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

const ours, theirs = Secret("ours"), Secret("theirs")

// asked is a request from one pod to another one.
func asked(m *Meeting, secret Secret, from, to string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/?from="+from, http.NoBody)
	r.RemoteAddr = net.JoinHostPort(from, "4711")
	r.Header.Set(nonceHeader, "n")
	secret.prove(r.Header, "ask", "n", to, from)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	return w
}

// TestStrangerAsks checks that a pod only counts requests of its run, and makes none to
// other pods.
func TestStrangerAsks(t *testing.T) {
	for name, c := range map[string]struct {
		secret Secret
		to     string
	}{
		"without a secret":              {"", "10.2.1.7"},
		"with another one":              {theirs, "10.2.1.7"},
		"with a request to another pod": {ours, "10.2.1.8"},
		"with a request to no pod":      {ours, ""},
	} {
		m := NewMeeting(ours, []string{"10.2.1.7"}, nil, 1)
		if w := asked(m, c.secret, "10.4.1.9", c.to); w.Code != http.StatusForbidden || w.Header().Get(proofHeader) != "" {
			t.Errorf("%s: answered %d, with the proof %q", name, w.Code, w.Header().Get(proofHeader))
		}
		if err := m.State(); err == nil || !strings.Contains(err.Error(), "no request yet from 1 pods") || len(m.missing()) > 0 {
			t.Errorf("%s: state %v, and it is to ask %q", name, err, m.missing())
		}
	}
	m := NewMeeting(ours, []string{"fd00:0:2::7", "10.2.1.7"}, nil, 1)
	if w := asked(m, ours, "10.4.1.9", "10.2.1.7"); w.Code != http.StatusOK || !ours.proven(w.Header(), "answer", "n") {
		t.Errorf("one of its own: answered %d", w.Code)
	}
}

// TestStrangerAnswers responds at a pod's address like a pod.
func TestStrangerAnswers(t *testing.T) {
	const there = "127.86.42.3"
	for name, secret := range map[string]Secret{"without a secret": "", "with another one": theirs} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			group.Go(func() {
				if err := Serve(ctx, Request{Secret: secret, ServeFor: 120, MeetFrom: []string{there}}); err != nil {
					t.Error(err)
				}
			})
			t.Cleanup(func() { cancel(); group.Wait() })
			var got Result
			TryAll(t.Context(), Request{Secret: ours, Patience: 3, Try: []string{there}, Stream: there, MeetFrom: []string{"127.0.0.1"}}, &got)
			if !strings.Contains(got.Connections[0].Error, errStranger.Error()) || !strings.Contains(got.Streamed.Error, errStranger.Error()) {
				t.Errorf("tried %+v, streamed %+v", got.Connections[0], got.Streamed)
			}
			conn, err := dialWhole(t.Context(), there)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if _, err := ours.echo(conn.UDPConn, smallest, 300*time.Millisecond); err == nil {
				t.Error("its datagrams count")
			}
			if rtt, err := secret.echo(conn.UDPConn, smallest, 10*time.Second); err != nil {
				t.Errorf("it answers none, after %v: %v", rtt, err)
			}
		})
	}
	t.Run("of a meeting", func(t *testing.T) {
		listener, err := net.Listen("tcp", at(there))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		_ = server.Listener.Close()
		server.Listener = listener
		server.Start()
		defer server.Close()
		if err := NewMeeting(ours, []string{"127.0.0.1"}, nil, 0).ask(t.Context(), there); !errors.Is(err, errStranger) {
			t.Errorf("error %v", err)
		}
		if err := NewMeeting("", []string{"127.0.0.1"}, nil, 0).ask(t.Context(), there); err != nil {
			t.Errorf("without a secret: %v", err)
		}
	})
}

// TestMeetingsOfOneRun runs two pods that request each other.
func TestMeetingsOfOneRun(t *testing.T) {
	const one, two = "10.2.1.7", "127.86.42.5"
	listener, err := net.Listen("tcp", at(two))
	if err != nil {
		t.Fatal(err)
	}
	// On loopback all come from one address.
	there := NewMeeting(ours, []string{two, "127.0.0.1"}, nil, 1)
	server := httptest.NewUnstartedServer(there)
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	defer server.Close()
	if err := NewMeeting(ours, []string{one, "127.0.0.1"}, []string{two}, 0).ask(t.Context(), two); err != nil {
		t.Error(err)
	}
	if err := there.State(); err == nil || strings.Contains(err.Error(), "no request yet") {
		t.Errorf("it wasn't asked, or needn't ask back: %v", err)
	}
}

func TestSecretIsRedacted(t *testing.T) {
	r := Request{Secret: "words", ServeFor: 1}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if text := fmt.Sprintf(format, r); strings.Contains(text, "words") {
			t.Errorf("%s: %s", format, text)
		}
	}
	if a, b := NewSecret(), NewSecret(); a == b || len(a) < 26 {
		t.Error("secrets aren't random")
	}
}
