package run

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/synctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// task is a Task made of a function.
type task struct {
	name string
	run  func(ctx context.Context) error
}

func (t task) Run(ctx context.Context) error { return t.run(ctx) }
func (t task) String() string                { return t.name }

func untilCancelled(name string) task {
	return task{name, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestRunEndsOnSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			running := make(chan struct{})
			done := make(chan error, 1)
			go func() {
				done <- Run(t.Context(), quiet(), time.Minute, untilCancelled("first"), task{"second", func(ctx context.Context) error {
					close(running)
					<-ctx.Done()
					return nil
				}})
			}()
			<-running
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Errorf("Run() = %v after %v, want nil", err, sig)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, quiet(), time.Minute, untilCancelled("only")); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestRunWithoutTasksWaitsForItsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, quiet(), time.Minute); err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
}

func TestFailingTaskEndsTheOthers(t *testing.T) {
	broken := errors.New("broken")
	err := Run(t.Context(), quiet(), time.Minute,
		untilCancelled("steady"),
		task{"faulty", func(context.Context) error { return broken }})
	if !errors.Is(err, broken) || err.Error() != "faulty: broken" {
		t.Errorf("Run() = %v, want the task's error behind its name", err)
	}
}

func TestTaskThatJustReturnsIsAnError(t *testing.T) {
	err := Run(t.Context(), quiet(), time.Minute,
		untilCancelled("steady"),
		task{"quitter", func(context.Context) error { return nil }})
	if err == nil || err.Error() != "quitter: ended by itself" {
		t.Errorf("Run() = %v, want it to name the task that ended", err)
	}
}

func TestErrorsDuringShutdownAreReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("cannot close")
	err := Run(ctx, quiet(), time.Minute, untilCancelled("steady"), task{"closing", func(ctx context.Context) error {
		<-ctx.Done()
		return broken
	}})
	if !errors.Is(err, broken) {
		t.Errorf("Run() = %v, want %v", err, broken)
	}
}

func TestStuckTasksAreNamedAfterGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := func(name string) task {
			return task{name, func(context.Context) error {
				<-release
				return nil
			}}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		tasks := []Task{stuck("device gcp"), untilCancelled("steady"), stuck("device aws")}
		err := together(ctx, 20*time.Millisecond, tasks, func(error) {})
		if !errors.Is(err, ErrStuck) {
			t.Fatalf("together() = %v, want ErrStuck", err)
		}
		if want := "within 20ms: device gcp, device aws"; !strings.HasSuffix(err.Error(), want) {
			t.Errorf("together() = %q, want it to end in %q", err, want)
		}
		close(release)
	})
}
