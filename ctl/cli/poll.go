package cli

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Poll calls ask until it succeeds, and returns its last error when ctx is done.
func Poll(ctx context.Context, ask func(context.Context) error) error {
	state := errors.New("not read yet")
	err := wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := ask(ctx); ctx.Err() == nil {
			state = err
		}
		return state == nil, nil
	})
	if err != nil {
		return state
	}
	return nil
}
