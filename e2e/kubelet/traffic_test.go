package kubelet_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/kubelet/meter"
)

// rate is the number of packets per second from each pod to the other. A busy machine loses
// some of 10,000 without a fault.
var rate = flag.Int("rate", 1000, "packets a second that each pod sends the other")

// traffic is the traffic between pods of both clusters until it is stopped.
type traffic struct {
	l  *lab
	id uint64 // of the first one's stream, the other's is the next
}

// result is the result of the traffic from one cluster to the other.
type result struct {
	from, to string
	sent     meter.Sent
	received meter.Received
}

func (r result) lost() int64 { return r.sent.Packets - r.received.Packets }

// broken says whether the TCP stream is.
func (r result) broken() bool { return r.sent.Broken != "" || r.sent.Bytes != r.received.Bytes }

// held says whether nothing was lost.
func held(results [2]result) bool {
	for _, r := range results {
		if r.lost() > 0 || r.broken() {
			return false
		}
	}
	return true
}

func (r result) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s to %s: %d of %d packets lost, silence %v, TCP stalls %v, sender's turns up to %v apart",
		r.from, r.to, r.lost(), r.sent.Packets, r.received.Silence.Round(time.Millisecond), r.received.Stall.Round(time.Millisecond), r.sent.Late.Round(time.Millisecond))
	if r.broken() {
		fmt.Fprintf(&s, " and is broken: %d of %d bytes, %s", r.received.Bytes, r.sent.Bytes, r.sent.Broken)
	}
	for i, loss := range r.received.Lost {
		if i == 5 {
			fmt.Fprintf(&s, ", and %d more", len(r.received.Lost)-i)
			break
		}
		fmt.Fprintf(&s, "; %d after %v", loss.Packets, loss.After.Round(time.Millisecond))
	}
	return s.String()
}

// call makes a request to a meter, and decodes the answer.
func (l *lab) call(ctx context.Context, t *testing.T, cluster int, method, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	node := l.nodes[cluster]
	client := http.Client{Transport: &http.Transport{DialContext: node.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, method,
		fmt.Sprintf("http://%s:%d%s", l.meters[cluster].Status.PodIP, meter.HTTPPort, path), http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, body)
	}
	decode(t, string(body), into)
	return nil
}

// startTraffic returns when both streams run.
func (l *lab) startTraffic(t *testing.T) *traffic {
	t.Helper()
	tr := &traffic{l: l, id: l.streams}
	l.streams += 2
	l.each(t, func(i int) error {
		path := fmt.Sprintf("/streams/%d?to=%s&rate=%d", tr.id+uint64(i), l.meters[1-i].Status.PodIP, *rate)
		return l.call(t.Context(), t, i, http.MethodPost, path, &struct{}{})
	})
	return tr
}

// stop ends both streams, waits for packets in flight and returns the results.
func (tr *traffic) stop(t *testing.T) [2]result {
	t.Helper()
	var results [2]result
	tr.l.each(t, func(i int) error {
		r := &results[i]
		r.from, r.to = tr.l.clusters[i].Name, tr.l.clusters[1-i].Name
		path := fmt.Sprintf("/streams/%d", tr.id+uint64(i))
		if err := tr.l.call(t.Context(), t, i, http.MethodDelete, path, &r.sent); err != nil {
			return err
		}
		// After a long silence TCP tries again late. A packet that is lost doesn't come.
		for stopped := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			r.received = meter.Received{}
			if err := tr.l.call(t.Context(), t, 1-i, http.MethodGet, path, &r.received); err != nil {
				return err
			}
			passed := time.Since(stopped)
			whole := r.received.Bytes == r.sent.Bytes && (r.lost() == 0 || passed > 3*time.Second)
			if whole || passed > 2*time.Minute {
				return nil
			}
		}
	})
	return results
}

// under runs something under traffic and prints the results. With an engine in the manifests
// nothing may be lost, except for what is lost without doing anything: a busy machine may lose
// packets by itself.
func (l *lab) under(t *testing.T, what string, happens func()) {
	t.Helper()
	start := time.Now()
	results := l.measure(t, what, happens)
	switch {
	case held(results):
	case !l.hasEngine(t):
		t.Logf("NOT HELD, as the manifests have no engine: %s", what)
	case !held(l.measure(t, "nothing, beside "+what, func() { time.Sleep(min(time.Since(start), 20*time.Second)) })):
		t.Logf("NOT KNOWN: this machine also loses packets without a fault: %s", what)
	default:
		t.Errorf("%s: not held: %v", what, results)
	}
}

// blinkTime is the time of packets that an upgrade of the engine may lose, those that a remote
// sends in sessions of the old engine, on a machine that has a processor for it.
const blinkTime = 100 * time.Millisecond

// blink is under for upgrades of the engine: streams continue, and no more packets are lost than
// a pod sends in blinkTime and in the longest time that a sender waited for a processor meanwhile:
// rollouts in two clusters on one machine make engines wait as long.
func (l *lab) blink(t *testing.T, what string, happens func()) {
	t.Helper()
	start := time.Now()
	least := func(results [2]result) bool {
		limit := blinkTime + max(results[0].sent.Late, results[1].sent.Late)
		for _, r := range results {
			if r.lost() > int64(float64(*rate)*limit.Seconds()) {
				return false
			}
		}
		return true
	}
	switch results := l.interrupt(t, what, happens); {
	case least(results):
	case !l.hasEngine(t):
		t.Logf("NOT HELD, as the manifests have no engine: %s", what)
	case !held(l.measure(t, "nothing, beside "+what, func() { time.Sleep(min(time.Since(start), 20*time.Second)) })):
		t.Logf("NOT KNOWN: this machine also loses packets without a fault: %s", what)
	default:
		t.Errorf("%s: more is lost than in %v and the senders' own delays: %v", what, blinkTime, results)
	}
}

// interrupt is under for operations that remove devices for a moment: streams continue
// afterwards.
func (l *lab) interrupt(t *testing.T, what string, happens func()) [2]result {
	t.Helper()
	results := l.measure(t, what, happens)
	for _, r := range results {
		if r.broken() {
			t.Errorf("%s: a stream broke: %v", what, r)
		}
	}
	return results
}

// measure runs something under traffic and prints the results.
func (l *lab) measure(t *testing.T, what string, happens func()) [2]result {
	t.Helper()
	tr := l.startTraffic(t)
	// The traffic before is what shows that it was there.
	time.Sleep(time.Second)
	start := time.Now()
	happens()
	took := time.Since(start)
	results := tr.stop(t)
	for _, r := range results {
		t.Logf("FIGURE %s (%v): %v", what, took.Round(100*time.Millisecond), r)
		if r.received.Packets == 0 {
			t.Errorf("%s: nothing arrived at all", what)
		}
	}
	return results
}
