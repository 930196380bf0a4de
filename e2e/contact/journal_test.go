package contact

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is something that happened during a first contact.
type event struct {
	At   time.Time
	Text string
}

// journal records events from several goroutines. A nil journal does nothing.
type journal struct {
	mu     sync.Mutex
	events []event
}

// note records an event with the current time.
func (j *journal) note(format string, args ...any) {
	if j == nil {
		return
	}
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events = append(j.events, event{now, fmt.Sprintf(format, args...)})
}

// packet records a packet that the relay received. Of requests and answers, which are
// many, only those about a session.
func (j *journal) packet(p Packet, pass bool) {
	if j == nil {
		return
	}
	what := fmt.Sprintf("type %d", p.Kind)
	switch {
	case p.Kind == Initiation && len(p.Data) >= 8:
		what = fmt.Sprintf("initiation %08x", binary.LittleEndian.Uint32(p.Data[4:]))
	case p.Kind == Response && len(p.Data) >= 12:
		what = fmt.Sprintf("response %08x to %08x", binary.LittleEndian.Uint32(p.Data[4:]), binary.LittleEndian.Uint32(p.Data[8:]))
	case p.Kind == Transport && len(p.Data) >= 16:
		what = fmt.Sprintf("data to %08x, number %d, %d bytes", binary.LittleEndian.Uint32(p.Data[4:]), binary.LittleEndian.Uint64(p.Data[8:]), len(p.Data))
	}
	if !pass {
		what += ", lost"
	}
	j.note("%d sends %s", p.From, what)
}

// watch records stalls of the machine, in which this idle process wasn't scheduled, until
// stop.
func (j *journal) watch(stop <-chan struct{}) {
	const rest, late = 5 * time.Millisecond, 15 * time.Millisecond
	for before := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-time.After(rest):
		}
		now := time.Now()
		if stood := now.Sub(before) - rest; stood > late {
			j.note("the machine stood still for %d ms", stood.Milliseconds())
		}
		before = now
	}
}

// take returns the records, and starts over.
func (j *journal) take() []event {
	j.mu.Lock()
	defer j.mu.Unlock()
	events := j.events
	j.events = nil
	return events
}

// story formats events in order, in milliseconds since begin.
func story(begin time.Time, events []event) string {
	slices.SortFunc(events, func(a, b event) int { return a.At.Compare(b.At) })
	var text strings.Builder
	for _, e := range events {
		fmt.Fprintf(&text, "%8.1f  %s\n", float64(e.At.Sub(begin).Microseconds())/1000, e.Text)
	}
	return text.String()
}
