package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// messages compares a tunnel with pods whose nodes route to each other without one, by what
// other networks publish, too: TCP with messages of three sizes, as netperf's TCP_STREAM,
// requests of 64 bytes, as its TCP_RR, and HTTP at a fixed rate.
func (b *bench) messages(ctx context.Context, a *arena) error {
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"}, testbed.ClusterConfig{Name: "single"})
	if err != nil {
		return err
	}
	aws, gcp, single := clusters[0], clusters[1], clusters[2]
	var pods [4]*testbed.Pod
	for i, c := range []*testbed.Cluster{aws, gcp, single, single} {
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		if err != nil {
			return err
		}
		if pods[i], err = node.AddPod(ctx, testbed.PodConfig{}); err != nil {
			return err
		}
	}
	ours, err := b.startAgents(ctx, a.agent, "agents", [2]*testbed.Pod{pods[0], pods[1]})
	if err != nil {
		return err
	}
	// The nodes of a testbed's cluster have routes to each other's pods.
	bare := &side{name: "no tunnel", from: pods[2], to: pods[3]}
	for _, s := range []*side{ours, bare} {
		if err := s.waitConnected(ctx); err != nil {
			return err
		}
	}
	for _, message := range []int{64, 1024, 8192} {
		for _, streams := range []int{1, 2, 4} {
			what := fmt.Sprintf("messages of %d bytes, ", message)
			if err := b.compare(ctx, ours, bare, what, flow{streams: streams, message: message}, goal{}); err != nil {
				return err
			}
		}
	}
	if err := b.roundTrips(ctx, ours, bare, fmt.Sprintf("requests of %d bytes", request), smallRequests, goal{}); err != nil {
		return err
	}
	return b.roundTrips(ctx, ours, bare, fmt.Sprintf("HTTP, %d a second", httpRate), httpRequests, goal{})
}

// HTTP requests: so many a second, over at most so many connections, answered with so many bytes.
const (
	httpRate        = 1000
	httpConnections = 16
	httpAnswer      = 1024
)

// serve answers HTTP requests.
func serve(address string) error {
	answer := make([]byte, httpAnswer)
	server := &http.Server{
		Addr: address, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }),
	}
	return server.ListenAndServe()
}

// fetch sends HTTP requests at a fixed rate for a while, whether or not earlier ones have been
// answered.
func fetch(address string, duration time.Duration) (asked, error) {
	first, err := dialPatiently(address)
	if err != nil {
		return asked{}, err
	}
	_ = first.Close()
	target := (&url.URL{Scheme: "http", Host: address}).String()
	client := &http.Client{
		Transport: &http.Transport{MaxConnsPerHost: httpConnections, MaxIdleConnsPerHost: httpConnections},
		Timeout:   10 * time.Second,
	}
	defer client.CloseIdleConnections()
	var (
		mu   sync.Mutex
		took []float64
	)
	_, err = pace(context.Background(), time.Second/httpRate, duration, func(int) error {
		start := time.Now()
		err := get(client, target)
		seconds := time.Since(start).Seconds()
		mu.Lock()
		defer mu.Unlock()
		took = append(took, seconds)
		return err
	})
	slices.Sort(took)
	return asked{measure.Quantile(took, 0.5), measure.Quantile(took, 0.99)}, err
}

func get(client *http.Client, target string) error {
	response, err := client.Get(target)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != httpAnswer {
		return errors.Join(err, fmt.Errorf("an answer of %d bytes", n))
	}
	return nil
}
