package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/routes"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// failed is a part that fails, since the epoch.
type failed struct{ error }

func (failed) String() string   { return "device gcp" }
func (f failed) Err() error     { return f.error }
func (failed) Since() time.Time { return time.Unix(0, 0) }

// TestReasons finds the reasons of errors as parts of the agent return them.
func TestReasons(t *testing.T) {
	taken := fmt.Errorf("ensure device wireguard.gcp: %w", fmt.Errorf("%w; listening on 40000 until it is free", fmt.Errorf("%w: 51820 by another program", tunnel.ErrPortTaken)))
	var undone error
	r := repairs{total: newLoopMetrics().repairs.WithLabelValues("x"), want: "[]"}
	for range mostRepairs + 1 {
		undone = r.note(time.Now(), effect{[]int{}, true}, nil)
	}
	denied := fmt.Errorf("publish on node %q: %w", "aws-1", &apierrors.StatusError{ErrStatus: metav1.Status{
		Message: `nodes "aws-1" is forbidden: ValidatingAdmissionPolicy 'no' with binding 'no' denied request: no`, Reason: metav1.StatusReasonForbidden, Code: 403,
	}})
	for want, err := range map[string]error{
		"":                             nil,
		statuspage.ReasonError:         errors.New("listen port is taken, as others say"),
		statuspage.ReasonPortTaken:     taken,
		statuspage.ReasonRouteInTheWay: errors.Join(fmt.Errorf("route to %s: %w", "10.4.0.0/16", fmt.Errorf("10.4.0.0/16 dev eth0 is %w", routes.ErrInTheWay))),
		statuspage.ReasonUndone:        undone,
		statuspage.ReasonRefused:       denied,
		statuspage.ReasonPortTaken + " " + statuspage.ReasonUndone: errors.Join(taken, undone),
	} {
		var got []string
		for _, c := range failing(failed{err}) {
			got = append(got, c.Reason)
			if c.Type != statuspage.Failing || c.Object != "device gcp" || c.Message != err.Error() || c.Since == nil {
				t.Errorf("%q: %+v", want, c)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
