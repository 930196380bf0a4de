// Command build builds the named tools, or all of them, and prints the path of
// each binary on a line of its own, in the order in which they were named.
// Progress goes to standard error.
//
//	go -C tools run ./build kube-apiserver etcd
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kube-semaphore/kube-semaphore/tools"
)

func main() {
	flag.Usage = func() {
		_, _ = fmt.Fprintf(flag.CommandLine.Output(), "usage: build [tool]...\ntools: %s\n", strings.Join(tools.Names(), ", "))
	}
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(names) == 0 {
		names = tools.Names()
	}
	binaries, err := tools.Build(ctx, tools.Config{Progress: os.Stderr}, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		fmt.Println(binaries[name])
	}
	return nil
}
