package scenarios_test

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestDoctor asks, of clusters to which one thing after the other is done, what is wrong.
func TestDoctor(t *testing.T) {
	t.Parallel()
	p := startPair(t, 2)
	a := administered(t, p)
	eventually(t, time.Minute, "all paths to be up", func(ctx context.Context) error {
		var v statusView
		code, err := a.ask(ctx, &v, "status", "aws", "gcp")
		if err == nil && (code != 0 || v.counts() != `aws>gcp{"Up":4,"Down":0,"Unknown":0} gcp>aws{"Up":4,"Down":0,"Unknown":0} `) {
			err = fmt.Errorf("code %d: %+v", code, v)
		}
		return err
	})
	out, _, err := a.run(within(t, time.Minute), "status", "aws", "gcp", "-o", "wide")
	must(t, err)
	t.Log(out)
}
