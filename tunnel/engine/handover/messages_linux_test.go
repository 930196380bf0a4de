package handover

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/conn"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// wireMessage returns a message of a type and size, with these words from byte 4 on.
func wireMessage(kind uint32, size int, words ...uint32) []byte {
	m := make([]byte, size)
	binary.LittleEndian.PutUint32(m, kind)
	for i, w := range words {
		binary.LittleEndian.PutUint32(m[4+4*i:], w)
	}
	return m
}

func TestIndicesOfMessages(t *testing.T) {
	type found struct {
		Receiver, Sender       uint32
		HasReceiver, HasSender bool
	}
	for name, c := range map[string]struct {
		message []byte
		want    found
	}{
		"initiation":                  {wireMessage(1, 148, 7, 8), found{Sender: 7, HasSender: true}},
		"response":                    {wireMessage(2, 92, 7, 8), found{Sender: 7, HasSender: true, Receiver: 8, HasReceiver: true}},
		"cookie":                      {wireMessage(3, 64, 7, 8), found{Receiver: 7, HasReceiver: true}},
		"keepalive":                   {wireMessage(4, 32, 7, 8), found{Receiver: 7, HasReceiver: true}},
		"data":                        {wireMessage(4, 1452, 7, 8), found{Receiver: 7, HasReceiver: true}},
		"initiation that is too long": {wireMessage(1, 149, 7, 8), found{}},
		"response that is cut off":    {wireMessage(2, 91, 7, 8), found{}},
		"cookie that is cut off":      {wireMessage(3, 63, 7, 8), found{}},
		"reserved bytes":              {wireMessage(0x104, 32, 7, 8), found{}},
		"unknown":                     {wireMessage(5, 148, 7, 8), found{}},
		"nothing":                     {nil, found{}},
		"too short":                   {wireMessage(4, 31, 7, 8), found{}},
	} {
		t.Run(name, func(t *testing.T) {
			var got found
			got.Receiver, got.HasReceiver = index(c.message)
			got.Sender, got.HasSender = sender(c.message)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOnlyTheLatestIndicesAreRemembered(t *testing.T) {
	var own indices
	for i := range uint32(maxIndices + 10) {
		own.add(i)
		own.add(i)
	}
	if len(own.has) != maxIndices || len(own.order) != maxIndices {
		t.Errorf("%d and %d are remembered, want %d", len(own.has), len(own.order), maxIndices)
	}
	for index, want := range map[uint32]bool{0: false, 9: false, 10: true, maxIndices + 9: true} {
		if own.has[index] != want {
			t.Errorf("index %d is remembered: %v, want %v", index, own.has[index], want)
		}
	}
}

func TestPeersOfADevice(t *testing.T) {
	a, b := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	text := "private_key=" + a + "\nlisten_port=51820\n" +
		"public_key=" + a + "\nendpoint=[2001:db8::1]:51820\nlast_handshake_time_sec=100\nlast_handshake_time_nsec=5\n" +
		"tx_bytes=7\nrx_bytes=9\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\n" +
		"public_key=" + b + "\nlast_handshake_time_sec=0\nlast_handshake_time_nsec=0\npersistent_keepalive_interval=0\n"
	got, err := parsePeers([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := map[Key]peer{
		Key(bytes.Repeat([]byte{10}, 32)): {endpoint: "[2001:db8::1]:51820", handshake: time.Unix(100, 5), sent: 7, received: 9, keepalive: 25},
		Key(bytes.Repeat([]byte{11}, 32)): {},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(peer{})); diff != "" {
		t.Error(diff)
	}
	if got := live(got, time.Unix(100+180, 0)); len(got) != 1 {
		t.Errorf("%d have a session 180 s after the handshake, want 1", len(got))
	}
	if got := live(got, time.Unix(100+181, 0)); len(got) != 0 {
		t.Errorf("%d have a session 181 s after the handshake, want 0", len(got))
	}
	for _, text := range []string{"public_key=00\n", "public_key=" + a[1:] + "g\n", "tx_bytes=-1\n"} {
		if _, err := parsePeers([]byte(text)); err == nil {
			t.Errorf("%q is read without an error", text)
		}
	}
}

func FuzzNews(f *testing.F) {
	f.Add(appendUpdate(appendUpdate(nil, peerUpdate{key: Key{1}, heard: true, endpoint: "192.0.2.1:1"}), peerUpdate{key: Key{2}}))
	f.Add(make([]byte, 33))
	f.Fuzz(func(t *testing.T, message []byte) {
		all, err := parseUpdates(message)
		if err != nil {
			return
		}
		var again []byte
		for _, n := range all {
			again = appendUpdate(again, n)
		}
		parsed, err := parseUpdates(again)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(all, parsed, cmp.AllowUnexported(peerUpdate{})); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzRelayedFrames(f *testing.F) {
	f.Add([]byte("\x03\x02\x00\x00\x00abcde"))
	f.Add([]byte("\xff\xff\xff\xff\xffabcde"))
	f.Fuzz(func(t *testing.T, frame []byte) {
		for rest := frame; ; {
			endpoint, message, behind := cutRelayed(rest)
			if message == nil {
				return
			}
			if len(endpoint)+len(message)+5+len(behind) != len(rest) {
				t.Fatalf("%d bytes became %d, %d and %d", len(rest), len(endpoint), len(message), len(behind))
			}
			rest = behind
		}
	})
}

// Messages for other processes are passed on, all of them, in order and with the address
// that they came from; those for this process stay.
func TestRelay(t *testing.T) {
	var frames [][]byte
	r := &relay{send: func(frame []byte) { frames = append(frames, bytes.Clone(frame)) }}
	r.learn([][]byte{wireMessage(1, 148, 1), wireMessage(2, 92, 2, 77)})
	messages := map[string]struct {
		message   []byte
		kept, all bool
	}{
		"data for a session of its own":    {wireMessage(4, 32, 1), true, true},
		"data for another":                 {wireMessage(4, 32, 77), false, false},
		"a response to it":                 {wireMessage(2, 92, 9, 2), true, true},
		"a late response to another":       {wireMessage(2, 92, 1, 9), false, true},
		"a cookie for it":                  {wireMessage(3, 64, 1), true, true},
		"a cookie for another":             {wireMessage(3, 64, 9), false, false},
		"an initiation":                    {wireMessage(1, 148, 9), false, true},
		"what is no message of WireGuard":  {[]byte("hello"), true, true},
		"what is nearly an initiation":     {wireMessage(1, 147, 9), false, true},
		"data as large as a datagram gets": {wireMessage(4, 65000, 9), false, false},
	}
	from, err := udp.New(udp.Config{}).ParseEndpoint("192.0.2.1:51820")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range messages {
		frames = nil
		sizes := []int{len(c.message)}
		r.forward([][]byte{c.message}, sizes, []conn.Endpoint{from})
		if kept := sizes[0] != 0; kept != c.kept {
			t.Errorf("%s: kept %v, want %v", name, kept, c.kept)
		}
		passed := !c.kept && !c.all
		if passed != (len(frames) == 1) {
			t.Errorf("%s: passed on in %d frames, want it to be %v", name, len(frames), passed)
		}
		if len(frames) == 1 {
			where, message, rest := cutRelayed(frames[0][1:])
			if where != "192.0.2.1:51820" || !bytes.Equal(message, c.message) || len(rest) > 0 {
				t.Errorf("%s: another message was passed on, from %s", name, where)
			}
		}
	}
}
