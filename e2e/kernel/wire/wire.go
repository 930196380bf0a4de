// Package wire is the protocol between the emulated machine and its runner.
//
// The runner puts a Plan into the machine's file system at PlanPath. The
// machine writes Messages, one JSON object per line, to a serial port that has no other
// writer: the kernel's log has its own port. The output of a test is part of a Message, so
// that it can't be parsed as one.
package wire

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// PlanPath is where the machine finds its plan.
const PlanPath = "/plan.json"

// MaxLine is the longest line that Read accepts, in bytes. A sender splits
// output well below it.
const MaxLine = 1 << 20

// Plan is all that the machine does between start and power-off.
type Plan struct {
	// Modules are paths of kernel modules, in the order in which they load.
	Modules []string `json:"modules"`
	// Programs run one after another.
	Programs []Program `json:"programs"`
	// Heartbeat is the time between two KindAlive messages.
	Heartbeat time.Duration `json:"heartbeat"`
}

// Program is one program that the machine runs.
type Program struct {
	// Name is the name that messages about the program carry.
	Name string `json:"name"`
	// Path is the executable, Dir its working directory.
	Path string `json:"path"`
	Dir  string `json:"dir"`
	// Args are its arguments, without its name; Env its whole environment.
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// Timeout is the time after which it is killed; 0 means never.
	Timeout time.Duration `json:"timeout"`
	// Required ends the plan with KindFault when the program fails.
	Required bool `json:"required"`
}

// Kind says what a message means.
type Kind string

// The kinds of messages, in the order in which they first appear.
const (
	// KindUp is the first message: the machine is ready. Text describes it.
	KindUp Kind = "up"
	// KindAlive comes every Plan.Heartbeat. A machine that stops sending it
	// hangs, whatever its programs do.
	KindAlive Kind = "alive"
	// KindStart says that Program starts.
	KindStart Kind = "start"
	// KindOutput carries Output, a piece of what Program wrote to its standard
	// output or error, which may begin and end within a line.
	KindOutput Kind = "output"
	// KindExit says that Program ended with Code after Took.
	KindExit Kind = "exit"
	// KindFault says in Text why the machine can't go on. It powers off.
	KindFault Kind = "fault"
	// KindDone is the last message: every program has run.
	KindDone Kind = "done"
)

// Message is one line from the machine.
type Message struct {
	Kind    Kind   `json:"kind"`
	Program string `json:"program,omitempty"`
	Text    string `json:"text,omitempty"`
	// Output holds bytes, not text: a piece may end within a character.
	Output []byte `json:"output,omitempty"`
	// Code is the exit status, or 128 and the number of the signal that ended
	// the program, as shells count.
	Code int           `json:"code,omitempty"`
	Took time.Duration `json:"took,omitempty"`
}

// Write sends one message.
func Write(w io.Writer, m Message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode %s message: %w", m.Kind, err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write %s message: %w", m.Kind, err)
	}
	return nil
}

// Read hands the messages in r to each, until r ends. A line that isn't a
// message is an error, because everything after it is in doubt; a last line
// without its end is what a machine leaves that died, and is dropped.
func Read(r io.Reader, each func(Message)) error {
	buffered := bufio.NewReaderSize(r, MaxLine)
	for {
		line, err := buffered.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read message: %w", err)
		}
		var m Message
		if err := json.Unmarshal(line, &m); err != nil {
			return fmt.Errorf("message %.80q: %w", line, err)
		}
		each(m)
	}
}
