package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// journal reads the log of an agent that logs JSON, from a place on. To read
// what the agent writes anyway disturbs it least.
type journal struct {
	path string
	at   int64
}

// entry is what we read of a line of the log.
type entry struct {
	Time  time.Time `json:"time"`
	Msg   string    `json:"msg"`
	Added int       `json:"added"`
	// Message is what wireguard-go says, at level debug.
	Message string `json:"message"`
}

// newJournal starts at the end of the log, which need not exist yet.
func newJournal(path string) (*journal, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return &journal{path: path}, nil
	}
	if err != nil {
		return nil, err
	}
	return &journal{path: path, at: info.Size()}, nil
}

// read returns what has been logged since the last call. A line that isn't
// whole yet is left for the next one. One that isn't JSON is passed over: the
// runtime writes such lines, too.
func (j *journal) read() ([]entry, error) {
	file, err := os.Open(j.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(j.at, io.SeekStart); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	content = content[:bytes.LastIndexByte(content, '\n')+1]
	j.at += int64(len(content))
	return parseJournal(content), nil
}

func parseJournal(content []byte) (entries []entry) {
	for line := range bytes.Lines(content) {
		var e entry
		if json.Unmarshal(line, &e) == nil {
			entries = append(entries, e)
		}
	}
	return entries
}

// waitAdded waits until the agent has logged that it added so many peers, and
// returns when it did.
func (j *journal) waitAdded(ctx context.Context, peers int) (at time.Time, err error) {
	added := 0
	err = testbed.Wait(ctx, "the agent's peers", func(context.Context) error {
		entries, err := j.read()
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Msg == "peers changed" {
				added += e.Added
				at = e.Time
			}
		}
		if added < peers {
			return fmt.Errorf("%d of %d", added, peers)
		}
		return nil
	})
	return at, err
}

// write is one line of configuration for one peer that reached a device.
type write struct {
	at   time.Time
	peer string // see shortKey
	what string
}

// writes returns the writes about peers that wireguard-go logs.
func writes(entries []entry) []write {
	logged := regexp.MustCompile(`^peer\(([^)]*)\) - UAPI: (.*)$`)
	var all []write
	for _, e := range entries {
		if m := logged.FindStringSubmatch(e.Message); m != nil {
			all = append(all, write{at: e.Time, peer: m[1], what: m[2]})
		}
	}
	return all
}

// shortKey is how wireguard-go writes a peer's key in its log, and our programs what
// isn't ASCII.
func shortKey(key wgtypes.Key) string {
	text := key.String()
	return text[0:4] + `\u2026` + text[39:43]
}
