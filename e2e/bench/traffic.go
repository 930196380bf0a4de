package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

// This program starts itself in these modes inside of pods, so that the work of
// sending and receiving is in no process whose processor time counts.
const (
	sendMode    = "send"
	receiveMode = "receive"
	askMode     = "ask"
	answerMode  = "answer"
	fetchMode   = "fetch"
	serveMode   = "serve"
)

func trafficModes() []string {
	return []string{sendMode, receiveMode, askMode, answerMode, fetchMode, serveMode}
}

// trafficBuffer is what one call of read or write moves, where nothing else is said.
const trafficBuffer = 128 << 10

// received is what a receiver prints: bytes, and seconds from the first to the
// last of them.
type received struct {
	Bytes   int64
	Seconds float64
}

func (r received) bitsPerSecond() float64 { return 8 * float64(r.Bytes) / r.Seconds }

// asked is what a client prints: how long its requests took, in seconds.
type asked struct{ Median, P99 float64 }

// traffic runs one of the modes: "receive ADDRESS STREAMS", "send ADDRESS STREAMS DURATION
// MESSAGE", "answer ADDRESS" and "serve ADDRESS" until SIGTERM, "ask ADDRESS DURATION" and "fetch
// ADDRESS DURATION".
func traffic(mode string, args []string) error {
	arguments := map[string]int{receiveMode: 2, sendMode: 4, answerMode: 1, askMode: 2, serveMode: 1, fetchMode: 2}[mode]
	if len(args) != arguments {
		return fmt.Errorf("%s: %d arguments instead of %d", mode, len(args), arguments)
	}
	address := args[0]
	switch mode {
	case answerMode, serveMode:
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM)
		go func() {
			<-asked
			os.Exit(0)
		}()
		if mode == serveMode {
			return serve(address)
		}
		return answer(address)
	case askMode, fetchMode:
		duration, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		ask := askFor
		if mode == fetchMode {
			ask = fetch
		}
		result, err := ask(address, duration)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(result)
	}
	streams, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if mode == receiveMode {
		result, err := receive(address, streams)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(result)
	}
	duration, durationErr := time.ParseDuration(args[2])
	message, messageErr := strconv.Atoi(args[3])
	if err := errors.Join(durationErr, messageErr); err != nil {
		return err
	}
	return send(address, flow{streams: streams, message: message}, duration)
}

// request is the size of a request and of its answer.
const request = 64

// askFor sends requests, one after the other, for a while.
func askFor(address string, duration time.Duration) (asked, error) {
	conn, err := dialPatiently(address)
	if err != nil {
		return asked{}, err
	}
	defer conn.Close()
	var took []float64
	buffer := make([]byte, request)
	for end := time.Now().Add(duration); ; {
		sent := time.Now()
		if _, err := conn.Write(buffer); err != nil {
			return asked{}, err
		}
		if _, err := io.ReadFull(conn, buffer); err != nil {
			return asked{}, err
		}
		now := time.Now()
		took = append(took, now.Sub(sent).Seconds())
		if now.After(end) {
			break
		}
	}
	slices.Sort(took)
	return asked{measure.Quantile(took, 0.5), measure.Quantile(took, 0.99)}, nil
}

// answer sends back what one connection brings.
func answer(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer listener.Close()
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{conn}, struct{ io.Reader }{conn}, make([]byte, request))
	return err
}

// flow is what a transfer sends: so many connections, with so many bytes in each write.
type flow struct{ streams, message int }

// send writes to connections for a while. As in netperf and iperf3, the kernel may put several
// small messages into one segment.
func send(address string, f flow, duration time.Duration) error {
	conns := make([]net.Conn, f.streams)
	for i := range conns {
		conn, err := dialPatiently(address)
		if err != nil {
			return err
		}
		if err := conn.(*net.TCPConn).SetNoDelay(false); err != nil {
			return err
		}
		conns[i] = conn
	}
	return each(f.streams, func(i int) error {
		defer conns[i].Close()
		// Closing the connection sends what the kernel still holds.
		if err := conns[i].SetWriteDeadline(time.Now().Add(duration)); err != nil {
			return err
		}
		buffer := make([]byte, f.message)
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
