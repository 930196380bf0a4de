package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestTasks compares the agent's table with that of the documents, and checks that nothing happens
// without a task for it.
func TestTasks(t *testing.T) {
	nstest.QuickRoot(t)
	cfg := testConfig(t)
	cfg.Remotes = cfg.Remotes[:1]
	cfg.Pod = config.Pod{Namespace: "sys-semaphore", Name: "wg-1", UID: "u"}
	cfg.Namespace, cfg.RemotesFrom = "sys-semaphore", config.RemotesFromRelay
	a, err := newAgent(cfg, slog.New(slog.DiscardHandler))
	check(t, err)
	defer a.close()
	rows, names, concerned := []string(nil), map[string]bool{}, change(0)
	for _, of := range a.table {
		concerned |= of.on
		every := "-"
		switch {
		case of.rate.Resync > 0:
			every = of.rate.Resync.String()
		case of.rate.Due != nil:
			every = "when due"
		}
		rate := cmp.Or(strings.TrimSuffix(of.rate.MinInterval.String(), "0s"), "-")
		if of.rate.Burst > 0 {
			rate += fmt.Sprintf(" after %d", of.rate.Burst)
		}
		does := of.does
		if len(of.steps) > 1 {
			var steps []string
			for _, s := range of.steps {
				steps = append(steps, "`"+s.name+"`")
			}
			does += ": " + strings.Join(steps, ", ")
		}
		for _, s := range of.steps {
			if names[s.name] {
				t.Errorf("two steps %s", s.name)
			}
			names[s.name] = true
		}
		rows = append(rows, strings.ReplaceAll(fmt.Sprintf("| %#q | %s | %s | %s | %s |\n", of.name, cmp.Or(of.on.String(), "-"), every, rate, does), " gcp`", " CLUSTER`"))
	}
	if all := sessionsDue<<1 - 1; concerned != all {
		t.Errorf("no task is triggered by: %v", all&^concerned)
	}
	text, err := os.ReadFile("../docs/architecture.md")
	check(t, err)
	if table := strings.Join(rows, ""); !strings.Contains(string(text), table) {
		t.Errorf("docs/architecture.md lacks this table:\n%s", table)
	}
}
