package main

import (
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

func TestTrafficCountsWhatArrives(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	const streams = 3
	var got received
	var group errgroup.Group
	group.Go(func() (err error) {
		got, err = receive(address, streams)
		return err
	})
	group.Go(func() error { return send(address, flow{streams: streams, message: trafficBuffer}, 2*time.Second) })
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got.Bytes < streams*trafficBuffer || got.Seconds < 0.1 || got.Seconds > 10 {
		t.Errorf("received %+v", got)
	}
}

func TestTrafficRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, args := range [][]string{nil, {"127.0.0.1:1"}, {"127.0.0.1:1", "1", "1s"}, {"127.0.0.1:1", "x", "1s", "1"}, {"127.0.0.1:1", "1", "soon", "1"}, {"127.0.0.1:1", "1", "1s", "x"}} {
		if err := traffic(sendMode, args); err == nil {
			t.Errorf("%q taken", args)
		}
	}
}

func TestPaceKeepsTheRateWhateverTheCallsTake(t *testing.T) {
	var calls, sum atomic.Int64
	n, err := pace(t.Context(), 10*time.Millisecond, 200*time.Millisecond, func(i int) error {
		calls.Add(1)
		sum.Add(int64(i))
		return measure.Pause(t.Context(), 100*time.Millisecond)
	})
	if err != nil || n != int(calls.Load()) || n < 5 || n > 21 {
		t.Errorf("%d calls returned, %d counted: %v", calls.Load(), n, err)
	}
	if want := int64(n * (n - 1) / 2); sum.Load() != want {
		t.Errorf("the numbers add up to %d, want %d", sum.Load(), want)
	}
	if _, err := pace(t.Context(), time.Millisecond, 2*time.Second, func(i int) error {
		return errors.New(strconv.Itoa(i))
	}); err == nil {
		t.Error("errors are lost")
	}
}

func TestParseOptions(t *testing.T) {
	opts, err := parse([]string{"-only", "filter,nodes", "-pairs", "2"})
	if err != nil || len(opts.only) != 2 || opts.pairs != 2 || opts.nodes != 5000 {
		t.Errorf("%+v, %v", opts, err)
	}
	for _, args := range [][]string{{"-only", "everything"}, {"-pairs", "0"}, {"-nodes", "-1"}, {"-speed"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q taken", args)
		}
	}
}
