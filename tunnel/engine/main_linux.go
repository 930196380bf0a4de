package engine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// background is for what the process does until it ends.
var background = context.Background()

// Exit codes.
const (
	exitFailed        = 1
	exitMisconfigured = 2
)

// The process is one of these, by its first argument; the keeper without one.
const (
	// roleStart starts a keeper that outlives it, where none answers, and ends when
	// one does.
	roleStart = "start"
	// roleTemporary is the keeper that roleStart starts.
	roleTemporary = "temporary"
	roleServer    = "server"
)

// Main is the program: it does what the command line asks for and returns the exit
// code. args are the arguments with the program's name.
func Main(args []string) int {
	role := ""
	if len(args) > 1 && args[1] != "" && args[1][0] != '-' {
		role = args[1]
	}
	flags := flag.NewFlagSet("semaphore-engine", flag.ContinueOnError)
	level := flags.String("log-level", env("SEMAPHORE_LOG_LEVEL", "info"), "least `level` of what is logged: debug, info, warn or error (SEMAPHORE_LOG_LEVEL)")
	format := flags.String("log-format", env("SEMAPHORE_LOG_FORMAT", "json"), "`format` of the log: json, or text for people (SEMAPHORE_LOG_FORMAT)")
	version := flags.Bool("version", false, "print which build this is")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	rest := args[1:]
	if role != "" {
		rest = args[2:]
	}
	switch err := flags.Parse(rest); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitMisconfigured
	case *version:
		fmt.Println("semaphore-engine", process.Build())
		return 0
	}
	log, err := process.NewLogger(os.Stderr, *level, *format)
	if err != nil {
		fmt.Fprintln(os.Stderr, "semaphore-engine:", err)
		return exitMisconfigured
	}
	server := []string{args[0], roleServer, "-log-level=" + *level, "-log-format=" + *format}
	switch role {
	case "", roleTemporary:
		err = keep(Config{Build: process.Build(), Server: server, Temporary: role == roleTemporary, Logger: log})
	case roleServer:
		err = runServing(log)
	case roleStart:
		err = start(args[0], rest)
	default:
		err = fmt.Errorf("%q is neither an option nor %s", role, roleStart)
	}
	if err != nil {
		log.Error("ended", "err", err)
		return exitFailed
	}
	return 0
}

const usage = `Usage: semaphore-engine [start] [options]

Serves WireGuard devices where the kernel has none, for semaphore-wireguard, which
tells it over a socket in /var/run/wireguard what to serve. With "start" it starts
one in the background, where none answers.

`

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func keep(cfg Config) error {
	ctx, stop := signal.NotifyContext(background, unix.SIGTERM, unix.SIGINT)
	defer stop()
	// Who reads the log may end before this process does, and so may the terminal
	// that it was started at.
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
	// It handles no packets, so that collecting garbage often costs nothing.
	process.LimitGarbage(keeperGarbage)
	return Run(ctx, cfg)
}

// keeperGarbage is how much garbage the keeper's heap may hold, in percent of what is
// alive in it.
const keeperGarbage = 10

// serverSocket is the descriptor of the socket that leads to the keeper.
const serverSocket = 3

func runServing(log *slog.Logger) error {
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP, unix.SIGTERM, unix.SIGINT) // The keeper says when to end.
	file := os.NewFile(serverSocket, "keeper")
	conn, err := net.FileConn(file)
	_ = file.Close()
	socket, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		return fmt.Errorf("this is for the engine itself: %w", errors.Join(err, unix.ENOTSOCK))
	}
	process.LimitMemory(log)
	defer process.GiveBack()()
	if err := process.ScheduleAsBatch(); err != nil {
		log.Info("packets take more processor time than they could", "err", err)
	}
	serve(socket, log)
	return nil
}

// startLimit is how long an engine may take to answer. startPoll is how often it is
// asked.
const (
	startLimit = 20 * time.Second
	startPoll  = 5 * time.Millisecond
)

// start makes sure that an engine answers. Several who call it at once start one.
func start(name string, options []string) error {
	ctx, cancel := context.WithTimeout(background, startLimit)
	defer cancel()
	if answers(ctx) == nil {
		return nil
	}
	cmd := exec.Command("/proc/self/exe", append([]string{roleTemporary}, options...)...)
	cmd.Args[0] = name
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with this process
	for {
		if answers(ctx) == nil {
			return nil
		}
		select {
		case err := <-ended:
			if answers(ctx) == nil {
				return nil // one that somebody else started
			}
			return fmt.Errorf("the engine has ended: %w", err)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the engine doesn't answer: %w", ctx.Err()), cmd.Process.Kill())
		case <-time.After(startPoll):
		}
	}
}

func answers(ctx context.Context) error {
	client, err := control.Dial(ctx)
	if err == nil {
		client.Close()
	}
	return err
}
