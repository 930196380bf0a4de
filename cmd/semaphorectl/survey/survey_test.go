package survey

import "testing"

// TestKubectl holds that what a cluster calls its objects is a word of a command that
// people paste into a shell, and no command of its own.
func TestKubectl(t *testing.T) {
	c := &Cluster{Context: "prod eu"}
	got := c.Kubectl("-n %s get node %s -o yaml", "sys-semaphore", "n; reboot '")
	if want := `kubectl --context 'prod eu' -n sys-semaphore get node 'n; reboot '\''' -o yaml`; got != want {
		t.Errorf("%s, expected %s", got, want)
	}
}
