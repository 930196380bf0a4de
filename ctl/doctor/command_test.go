package doctor

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

func TestPrintedForPeople(t *testing.T) {
	clusters := inspecttest.Pair(2)
	api := &clusters[0].Agents[0].Value.Remotes[0].API
	api.Error, api.Reason = "Unauthorized \x1b[2J", kube.TokenRefused
	var b strings.Builder
	d, err := judge.Diagnose(t.Context(), clusters, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := show(&b, d, ""); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"✗ token-refused: aws to gcp: the token is refused\n", `Unauthorized \x1b[2J`, "$ status of aws-1", "→ hand over", "? unknown: whether pods' own packets"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
}
