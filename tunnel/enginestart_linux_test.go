package tunnel

import (
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

func TestADeviceIsNotifiedOfTheStartOfAnEngine(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	comes := withoutEngine(t)
	if _, err := d.Ensure(t.Context()); !control.Absent(err) {
		t.Fatalf("Ensure returned %v, expected that no engine answers", err)
	}
	comes()
	select {
	case <-d.notified:
	case <-time.After(time.Minute):
		t.Fatal("not notified within a minute")
	}
	d.ensure(t)
	d.status(t)
}

func TestCloseStopsAwaitingAnEngine(t *testing.T) {
	comes := withoutEngine(t)
	d := open(t, config(t, "gcp", Userspace))
	_, err := d.Ensure(t.Context())
	closeErr := d.Close() // returns
	comes()
	if !control.Absent(err) || closeErr != nil {
		t.Fatalf("Ensure returned %v, Close %v", err, closeErr)
	}
	select {
	case <-d.notified:
		t.Error("a notification about a device that was closed")
	default:
	}
}
