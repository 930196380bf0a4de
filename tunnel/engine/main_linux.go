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

var background = context.Background()

// Roles of the process, selected by its first argument. Without one it is the supervisor.
const (
	// roleStart starts a supervisor in the background if none answers, and returns as soon
	// as one does.
	roleStart = "start"
	// roleTemporary is the supervisor that roleStart starts.
	roleTemporary = "temporary"
	roleServer    = "server"
)

// Main runs the program and returns its exit code. args are the command line's arguments,
// with the program's name.
func Main(args []string) int {
	role := ""
	if len(args) > 1 && args[1] != "" && args[1][0] != '-' {
		role = args[1]
	}
	flags := flag.NewFlagSet("semaphore-engine", flag.ContinueOnError)
	level := flags.String("log-level", env("SEMAPHORE_LOG_LEVEL", "info"), "minimum `level` of log messages: debug, info, warn or error (SEMAPHORE_LOG_LEVEL)")
	format := flags.String("log-format", env("SEMAPHORE_LOG_FORMAT", "json"), "`format` of log messages: json or text (SEMAPHORE_LOG_FORMAT)")
	version := flags.Bool("version", false, "print the version and exit")
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
		return process.ExitUsage
	case *version:
		fmt.Println("semaphore-engine", process.Build())
		return 0
	}
	direct, err := process.NewLogger(os.Stderr, *level, *format)
	if err != nil {
		fmt.Fprintln(os.Stderr, "semaphore-engine:", err)
		return process.ExitUsage
	}
	queue := newQueuedLog(os.Stderr, direct)
	defer queue.end()
	log, _ := process.NewLogger(queue, *level, *format) // The same settings were valid above.
	server := []string{args[0], roleServer, "-log-level=" + *level, "-log-format=" + *format}
	switch role {
	case "", roleTemporary:
		err = runSupervisor(Config{Build: process.Build(), Server: server, Temporary: role == roleTemporary, Logger: log})
	case roleServer:
		err = runDeviceServer(log)
	case roleStart:
		err = start(args[0], rest)
	default:
		err = fmt.Errorf("unknown command %q: want an option or %q", role, roleStart)
	}
	if err != nil {
		log.Error("ended", "err", err)
		return process.ExitFaults
	}
	return 0
}

const usage = `Usage: semaphore-engine [start] [options]

Serves WireGuard devices in user space where the kernel doesn't support WireGuard.
semaphore-wireguard controls it over a socket in /var/run/wireguard. With "start" it
starts an engine in the background, unless one answers already.

`

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func runSupervisor(cfg Config) error {
	ctx, stop := signal.NotifyContext(background, unix.SIGTERM, unix.SIGINT)
	defer stop()
	// The log's reader and the terminal may end before this process.
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP)
	// The supervisor handles no packets, so frequent garbage collection is cheap.
	process.LimitGarbage(supervisorGarbage)
	return Run(ctx, cfg)
}

// supervisorGarbage is the supervisor's GOGC: garbage in percent of the live heap.
const supervisorGarbage = 10

// serverSocket is the descriptor of the server's connection to the supervisor.
const serverSocket = 3

func runDeviceServer(log *slog.Logger) error {
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP, unix.SIGTERM, unix.SIGINT) // The supervisor ends this process.
	file := os.NewFile(serverSocket, "supervisor")
	conn, err := net.FileConn(file)
	_ = file.Close()
	socket, ok := conn.(*net.UnixConn)
	if err != nil || !ok {
		return fmt.Errorf("only the engine itself starts its server: %w", errors.Join(err, unix.ENOTSOCK))
	}
	process.LimitMemory(log)
	defer process.GiveBack()()
	if err := process.ScheduleAsBatch(); err != nil {
		log.Info("setting the batch scheduling policy failed: packets cost more CPU time", "err", err)
	}
	serve(socket, log)
	return nil
}

// startLimit bounds how long start waits for an engine to answer, startPoll is the
// interval of its attempts.
const (
	startLimit = 20 * time.Second
	startPoll  = 5 * time.Millisecond
)

// start makes sure that an engine answers. Concurrent calls start one engine.
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
				return nil // Another process started it.
			}
			return fmt.Errorf("the engine has ended: %w", err)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the engine doesn't answer: %w", ctx.Err()), cmd.Process.Kill())
		case <-time.After(startPoll):
		}
	}
}

// answers returns an error if no engine answers, or the one that has the socket hangs.
func answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	client, err := control.Dial(ctx)
	if err == nil {
		client.Close()
	}
	return err
}
