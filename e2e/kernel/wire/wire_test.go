package wire

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMessagesArriveAsSent(t *testing.T) {
	sent := []Message{
		{Kind: KindUp, Text: "Linux 6.1"},
		{Kind: KindOutput, Program: "./tunnel", Output: []byte("line\nhalf \x16--- \"quoted\" \xc3")},
		{Kind: KindOutput, Program: "./tunnel", Output: []byte("\xa9" + `{"kind":"done"}` + "\n")},
		{Kind: KindExit, Program: "./tunnel", Code: 2, Took: 3 * time.Second},
		{Kind: KindDone},
	}
	var line bytes.Buffer
	for _, m := range sent {
		if err := Write(&line, m); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(line.String(), "\n"); got != len(sent) {
		t.Errorf("%d lines for %d messages", got, len(sent))
	}
	var got []Message
	if err := Read(&line, func(m Message) { got = append(got, m) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("messages differ (-sent +received):\n%s", diff)
	}
}

func TestRead(t *testing.T) {
	for name, test := range map[string]struct {
		in   string
		want int
		fail bool
	}{
		"nothing":                      {in: ""},
		"last line cut off":            {in: "{\"kind\":\"up\"}\n{\"kind\":\"al", want: 1},
		"line that is no message":      {in: "{\"kind\":\"up\"}\npanic\n{\"kind\":\"done\"}\n", want: 1, fail: true},
		"line longer than the longest": {in: strings.Repeat("x", MaxLine+1) + "\n", fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := 0
			err := Read(strings.NewReader(test.in), func(Message) { got++ })
			if got != test.want {
				t.Errorf("%d messages, want %d", got, test.want)
			}
			if (err != nil) != test.fail {
				t.Errorf("error %v, want one: %v", err, test.fail)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("{\"kind\":\"up\"}\n"))
	f.Add([]byte("\n"))
	f.Fuzz(func(_ *testing.T, in []byte) {
		_ = Read(bytes.NewReader(in), func(Message) {})
	})
}
