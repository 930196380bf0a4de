// Command demo shows the three programs at work on this machine: two clusters
// with real API servers, two nodes each, encrypted traffic between their pods,
// a killed agent and its return. It ends by itself and removes everything.
//
//	go run ./e2e/demo          runs the demo and removes everything
//	go run ./e2e/demo -keep    keeps the clusters running
//	go run ./e2e/demo -relay   lets agents read nodes from semaphore-relay
//	go run ./e2e/demo -overlap joins clusters with equal pod subnets
//	go run ./e2e/demo -down    removes the clusters of -keep
//
// It needs root. The exit code is 0 if every step succeeded.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// limit bounds the whole demo, including the first build of the tools.
const limit = 45 * time.Minute

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	keep := flag.Bool("keep", false, "keep the clusters running in the background")
	var with switches
	flag.BoolVar(&with.relay, "relay", false, "join the clusters with semaphore-relay")
	flag.BoolVar(&with.overlap, "overlap", false, "join clusters with equal pod subnets")
	down := flag.Bool("down", false, "remove the clusters of an earlier -keep")
	background := flag.String("background", "", "internal: run as the background process, with this file for output")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	switch {
	case os.Getuid() != 0:
		return errors.New("the demo makes network namespaces: run it as root")
	case *down:
		return takeDown(ctx)
	case *background != "":
		return stay(ctx, *background, with)
	case *keep:
		return leave(ctx, with)
	}
	return perform(ctx, os.Stdout, with)
}

// perform runs the demo and removes everything afterwards.
func perform(ctx context.Context, out io.Writer, with switches) error {
	s := newShow(out, with)
	defer s.close()
	return s.run(ctx)
}
