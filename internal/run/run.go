// Package run runs the tasks of a long-running program and its HTTP servers for probes,
// metrics and status, and shuts them down.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Task is a long-running part of a program. Run returns soon after ctx has ended, and
// before that only if it can't continue. String names the task in logs.
type Task interface {
	Run(ctx context.Context) error
	String() string
}

// ErrStuck is wrapped by the error of Run when tasks did not end in time.
var ErrStuck = errors.New("tasks did not end")

// Run runs all tasks until one of them returns, ctx ends, or the process gets SIGTERM or
// SIGINT; then it cancels the others and waits for them, for at most grace. A second signal
// kills the process, as it would without Run.
//
// The error joins those of the tasks, each after the task's name, and ErrStuck with the
// names of tasks that are still running. A task that returns nil before it was cancelled is
// an error; one that returns context.Canceled after that isn't. Panics are not recovered.
func Run(ctx context.Context, log *slog.Logger, grace time.Duration, tasks ...Task) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return together(ctx, grace, tasks, func(reason error) {
		stop()
		log.Info("shutting down", "reason", reason, "grace", grace)
	})
}

// together is Run without signals. It calls ending when the first task has returned or ctx
// has ended, before it waits.
func together(ctx context.Context, grace time.Duration, tasks []Task, ending func(reason error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	ends := make(chan end, len(tasks))
	for i, task := range tasks {
		go func() {
			err := task.Run(ctx)
			asked := ctx.Err() != nil
			// Cancel here rather than in collect, so that a task that ends because of this one
			// isn't reported as the first.
			cancel(fmt.Errorf("%v ended", task))
			ends <- end{task: i, err: err, asked: asked}
		}()
	}

	<-ctx.Done()
	ending(context.Cause(ctx))
	return collect(ends, tasks, grace)
}

// end is the outcome of a task, and whether it had been cancelled before.
type end struct {
	task  int // index
	err   error
	asked bool
}

func (e end) fault() error {
	switch {
	case e.asked && (e.err == nil || errors.Is(e.err, context.Canceled)):
		return nil
	case e.err == nil:
		return errors.New("ended by itself")
	default:
		return e.err
	}
}

func collect(ends <-chan end, tasks []Task, grace time.Duration) error {
	var (
		errs    []error
		ended   = make([]bool, len(tasks))
		expired = time.After(grace)
	)
	for range tasks {
		select {
		case e := <-ends:
			ended[e.task] = true
			if err := e.fault(); err != nil {
				errs = append(errs, fmt.Errorf("%v: %w", tasks[e.task], err))
			}
		case <-expired:
			var names []string
			for i, task := range tasks {
				if !ended[i] {
					names = append(names, task.String())
				}
			}
			errs = append(errs, fmt.Errorf("%w within %v: %s", ErrStuck, grace, strings.Join(names, ", ")))
			return errors.Join(errs...)
		}
	}
	return errors.Join(errs...)
}
