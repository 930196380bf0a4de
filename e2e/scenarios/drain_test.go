package scenarios_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/verify"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// drained reports whether gcp is marked as drained.
func (c *clients) drained(ctx context.Context) (bool, error) {
	service, err := c.GCP.Client().CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return service.Annotations["mirror.semaphore.uw.io/drained"] != "", nil
}

// TestVerifyDrain drains gcp by verify, with pods of aws that ask a global service of both clusters and
// one that only gcp has: with its mirror, without, and interrupted by each signal.
func TestVerifyDrain(t *testing.T) {
	t.Parallel()
	c := startClients(t)
	both, alone := service("both", "global-service=true"), service("alone", "global-service=true")
	putService(t, c.AWS, "shop", both, c.Pods[0])
	putService(t, c.GCP, "shop", both, c.Pods[2])
	putService(t, c.GCP, "shop", alone, c.Pods[3])
	c.well(t)

	drain := []string{"verify", "aws", "gcp", "--drain", "gcp", "--duration", "8s", "--image", "none", "--nodes", "2"}
	run := func(want int) map[string]verify.Row {
		t.Helper()
		out, code, err := c.run(within(t, 3*time.Minute), append(drain, "-o", "json")...)
		must(t, err)
		var report verify.Report
		if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &report); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rows := map[string]verify.Row{}
		for _, row := range report.Rows {
			rows[row.To] = row
			t.Logf("%s %s %s: %s, %+v", row.From, row.To, row.State, row.Found, row.Requests)
		}
		if is, err := c.drained(t.Context()); is || err != nil || code != want || len(rows) != 2 {
			t.Errorf("it ended with %d, want %d; drained afterwards: %t, %v\n%s", code, want, is, err, out)
		}
		for _, name := range []string{"both", "alone"} {
			if row := rows[name+".shop.svc.cluster.global"]; row.Requests == nil || row.Requests.Sent < 50 || row.Requests.Lost > 0 {
				t.Errorf("%s: %+v, %+v", name, row, row.Requests)
			}
		}
		return rows
	}
	rows := run(0)
	if found := rows["both.shop.svc.cluster.global"].Found; !strings.Contains(found, "they left gcp within") {
		t.Errorf("both: %s", found)
	}
	if found := rows["alone.shop.svc.cluster.global"].Found; !strings.Contains(found, "only gcp has ready endpoints") {
		t.Errorf("alone: %s", found)
	}

	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		process, err := c.Agents[0].Node.Start(sandbox.Command{
			Name: "semaphorectl", Path: c.binary, Args: append(drain, "--kubeconfig", c.kubeconfig), Log: filepath.Join(t.TempDir(), "log"), Env: []string{"HOME=" + t.TempDir()},
		})
		must(t, err)
		eventually(t, time.Minute, "gcp to be drained", func(ctx context.Context) error {
			is, err := c.drained(ctx)
			if err == nil && !is {
				err = fmt.Errorf("it isn't: %s", process.Log())
			}
			return err
		})
		must(t, process.Signal(signal))
		<-process.Done()
		t.Logf("%v: %v\n%s", signal, process.Err(), process.Log())
		if is, err := c.drained(t.Context()); is || err != nil || process.Err() == nil {
			t.Errorf("after %v it is drained: %t, %v", signal, is, err)
		}
	}

	c.mirror.Process().Kill()
	<-c.mirror.Process().Done()
	rows = run(1)
	if found := rows["both.shop.svc.cluster.global"].Found; !strings.Contains(found, "endpoints of gcp are in use after 8s") {
		t.Errorf("without a mirror: %s", found)
	}
}
