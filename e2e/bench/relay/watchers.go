package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

// crowd is all watchers of one kind, each with a connection of its own. They do as little as
// possible with what they get, because they share the machine with the API server.
type crowd struct {
	kind   *kind
	roots  *x509.CertPool
	bytes  atomic.Int64
	events atomic.Int64
	synced atomic.Int64          // watchers with all objects
	lost   atomic.Int64          // connections
	err    atomic.Pointer[error] // of a watcher, the last one

	cancel context.CancelFunc
	all    sync.WaitGroup
}

// start opens watchers.
func start(ctx context.Context, k *kind, count int) (*crowd, error) {
	ca, err := os.ReadFile(k.cluster.CAFile())
	if err != nil {
		return nil, err
	}
	c := &crowd{kind: k, roots: x509.NewCertPool()}
	c.roots.AppendCertsFromPEM(ca)
	ctx, c.cancel = context.WithCancel(ctx)
	for range count {
		c.all.Go(func() { c.watch(ctx) })
	}
	return c, nil
}

func (c *crowd) stop() {
	c.cancel()
	c.all.Wait()
}

// watch reads until ctx ends, and begins again 0.8 to 1.6 s after a failure, as agents do.
func (c *crowd) watch(ctx context.Context) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: c.roots}, DialContext: c.kind.cluster.RESTConfig().Dial, ForceAttemptHTTP2: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	for ctx.Err() == nil {
		synced, err := c.follow(ctx, transport)
		if ctx.Err() != nil {
			return
		}
		if synced {
			c.synced.Add(-1)
			c.lost.Add(1)
		}
		c.err.Store(&err)
		_ = measure.Pause(ctx, 800*time.Millisecond+rand.N(800*time.Millisecond))
	}
}

func (c *crowd) follow(ctx context.Context, transport *http.Transport) (synced bool, err error) {
	url := strings.TrimSuffix(c.kind.cluster.APIURL(), "/") + c.kind.path +
		"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false, err
	}
	request.Header.Set("Accept", c.kind.accept)
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(c.kind.token))
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return false, errors.New(response.Status)
	}
	read := lines
	if strings.Contains(c.kind.accept, "protobuf") {
		read = frames
	}
	from := bufio.NewReaderSize(response.Body, 64<<10)
	for {
		event, err := read(from)
		if err != nil {
			return synced, err
		}
		c.bytes.Add(int64(len(event)))
		if !synced && bytes.Contains(event, []byte(metav1.InitialEventsAnnotationKey)) {
			synced = true
			c.synced.Add(1)
			continue
		}
		if synced && !bytes.Contains(event[:min(len(event), 40)], []byte("BOOKMARK")) {
			c.events.Add(1)
		}
	}
}

// lines returns the next event in JSON.
func lines(from *bufio.Reader) ([]byte, error) {
	line, err := from.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	line = bytes.Clone(line)
	rest, err := from.ReadBytes('\n')
	return append(line, rest...), err
}

// frames returns the next event in protobuf.
func frames(from *bufio.Reader) ([]byte, error) {
	const size = 4
	head, err := from.Peek(size)
	if err != nil {
		return nil, err
	}
	frame := make([]byte, size+int(binary.BigEndian.Uint32(head)))
	_, err = io.ReadFull(from, frame)
	return frame, err
}

// figures are those of one kind.
type figures struct {
	name            string
	watchers, nodes int
	firstBytes      float64 // per watcher
	firstCPU        float64 // seconds of the API server, per watcher
	firstTook       float64 // seconds until the last watcher has all
	eventBytes      float64 // per change and watcher
	eventCPU        float64 // seconds, per change and watcher
	bareCPU         float64 // seconds, per change without watchers
	restartTook     float64 // seconds from the API server's start until the last watcher has all
	restartCPU      float64 // seconds of the API server, without those of a restart without watchers
	memory          float64 // peak of the API server in bytes
}

func (b *bench) kind(ctx context.Context, k *kind) (f figures, err error) {
	f = figures{name: k.name, watchers: b.watchers, nodes: b.nodes}
	cpu := func() float64 {
		_, pid := k.cluster.ControlPlane()
		used, cpuErr := measure.CPU(pid)
		err = errors.Join(err, cpuErr)
		return used.Seconds()
	}
	measure.Say("%s: restart and changes without watchers", k.name)
	k.cluster.StopAPI()
	if err := errors.Join(k.cluster.StartAPI(ctx), measure.Pause(ctx, 10*time.Second)); err != nil {
		return f, err
	}
	bareRestart := cpu()
	if err := b.stored(ctx); err != nil {
		return f, err
	}
	before := cpu()
	if err := b.changeAll(ctx, k, 0); err != nil {
		return f, err
	}
	bare := cpu() - before
	f.bareCPU = bare / float64(b.changes)

	measure.Say("%s: first read by %d watchers", k.name, b.watchers)
	before, began := cpu(), time.Now()
	c, err := start(ctx, k, b.watchers)
	if err != nil {
		return f, err
	}
	defer c.stop()
	if err := b.allSynced(ctx, c); err != nil {
		return f, err
	}
	f.firstTook = time.Since(began).Seconds()
	f.firstCPU = (cpu() - before) / float64(b.watchers)
	f.firstBytes = float64(c.bytes.Load()) / float64(b.watchers)
	// Where they take all processors, the relay may have lost its Lease meanwhile.
	if err := b.stored(ctx); err != nil {
		return f, err
	}

	measure.Say("%s: changes", k.name)
	c.bytes.Store(0)
	c.events.Store(0)
	before = cpu()
	if err := b.changeAll(ctx, k, b.changes); err != nil {
		return f, err
	}
	// The last ones arrive.
	last := int64(-1)
	for last != c.events.Load() {
		last = c.events.Load()
		if err := measure.Pause(ctx, 2*time.Second); err != nil {
			return f, err
		}
	}
	events := float64(c.events.Load())
	if events == 0 {
		return f, fmt.Errorf("no events of %d changes", b.changes)
	}
	measure.Say("%s: %.1f events for each of %d watchers, of %d changes", k.name, events/float64(b.watchers), b.watchers, b.changes)
	f.eventCPU = (cpu() - before - bare) / events
	f.eventBytes = float64(c.bytes.Load()) / events
	relay, err := peak(b.Program.Process().PID())
	if err != nil {
		return f, err
	}
	b.memory = max(b.memory, relay)

	measure.Say("%s: restart of the API server", k.name)
	k.cluster.StopAPI()
	c.bytes.Store(0)
	began = time.Now()
	if err := k.cluster.StartAPI(ctx); err != nil {
		return f, err
	}
	if err := b.allSynced(ctx, c); err != nil {
		return f, err
	}
	f.restartTook, f.restartCPU = time.Since(began).Seconds(), cpu()-bareRestart
	_, pid := k.cluster.ControlPlane()
	f.memory, err = peak(pid)
	return f, err
}

// changeAll makes changes at the rate, from a number on.
func (b *bench) changeAll(ctx context.Context, k *kind, from int) error {
	ticker := time.NewTicker(time.Second / time.Duration(b.rate))
	defer ticker.Stop()
	for n := range b.changes {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if err := k.change(ctx, from+n); err != nil {
			return err
		}
	}
	return measure.Pause(ctx, time.Second)
}

// allSynced waits until all watchers have all objects.
func (b *bench) allSynced(ctx context.Context, c *crowd) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for c.synced.Load() < int64(b.watchers) {
		if err := measure.Pause(ctx, 20*time.Millisecond); err != nil {
			if last := c.err.Load(); last != nil {
				err = errors.Join(err, *last)
			}
			return fmt.Errorf("%d of %d watchers have all objects: %w", c.synced.Load(), b.watchers, err)
		}
	}
	return nil
}

// peak returns the largest resident memory that a process has had, in bytes.
func peak(pid int) (float64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		var kilobytes float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kilobytes); err == nil {
			return kilobytes * 1024, nil
		}
	}
	return 0, errors.New("no VmHWM")
}
