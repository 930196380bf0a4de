package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// This program starts itself in these modes inside of pods, so that the work of
// sending and receiving is in no process whose processor time counts.
const (
	sendMode    = "send"
	receiveMode = "receive"
)

// trafficBuffer is what one call of read or write moves.
const trafficBuffer = 128 << 10

// received is what a receiver prints: bytes, and seconds from the first to the
// last of them.
type received struct {
	Bytes   int64
	Seconds float64
}

func (r received) bitsPerSecond() float64 { return 8 * float64(r.Bytes) / r.Seconds }

// traffic runs one of the modes: "send ADDRESS STREAMS DURATION" or "receive
// ADDRESS STREAMS".
func traffic(mode string, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("%s: too few arguments", mode)
	}
	streams, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if mode == receiveMode {
		result, err := receive(args[0], streams)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(result)
	}
	if len(args) < 3 {
		return fmt.Errorf("%s: too few arguments", mode)
	}
	duration, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	return send(args[0], streams, duration)
}

// send writes to so many connections for a while.
func send(address string, streams int, duration time.Duration) error {
	conns := make([]net.Conn, streams)
	for i := range conns {
		conn, err := dialPatiently(address)
		if err != nil {
			return err
		}
		conns[i] = conn
	}
	return each(streams, func(i int) error {
		defer conns[i].Close()
		// Closing the connection sends what the kernel still holds.
		if err := conns[i].SetWriteDeadline(time.Now().Add(duration)); err != nil {
			return err
		}
		buffer := make([]byte, trafficBuffer)
		for {
			_, err := conns[i].Write(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
}

// dialPatiently retries until the server listens.
func dialPatiently(address string) (net.Conn, error) {
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil || time.Now().After(limit) {
			return conn, err
		}
	}
}

// receive takes what so many connections bring.
func receive(address string, streams int) (received, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return received{}, err
	}
	defer listener.Close()
	conns := make([]net.Conn, streams)
	for i := range conns {
		if conns[i], err = listener.Accept(); err != nil {
			return received{}, err
		}
	}
	var (
		bytes atomic.Int64
		first sync.Once
		start time.Time
	)
	err = each(streams, func(i int) error {
		defer conns[i].Close()
		buffer := make([]byte, trafficBuffer)
		for {
			n, err := conns[i].Read(buffer)
			first.Do(func() { start = time.Now() })
			bytes.Add(int64(n))
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
		}
	})
	return received{Bytes: bytes.Load(), Seconds: time.Since(start).Seconds()}, err
}

// each calls do for all numbers below count, at the same time.
func each(count int, do func(i int) error) error {
	errs := make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
