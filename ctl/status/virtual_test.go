package status

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// TestVirtualSubnets shows the subnets by which other clusters know pods.
func TestVirtualSubnets(t *testing.T) {
	clusters := inspecttest.Pair(3)
	const own = "10.0.0.0/16=100.77.0.0/16,fd00:4::/48=fd00:77::/48"
	clusters[0].Settings.Value = map[string]string{inspect.PodSubnetsMap: own}
	for i := range clusters[0].Nodes.Value {
		clusters[0].Nodes.Value[i].Map = own
	}
	clusters[0].Nodes.Value[2].Map = "10.0.0.0/16=100.99.0.0/16"
	v := view(t, clusters)
	var text, page strings.Builder
	if err := v.Text(&text, false); err != nil {
		t.Fatal(err)
	}
	if err := v.HTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"aws: other clusters know its pods 10.0.0.0/16 as 100.77.0.0/16", "aws: other clusters know its pods fd00:4::/48 as fd00:77::/48", "virtual-subnets-differ: aws-3 has other virtual subnets than the settings of aws"} {
		for _, got := range []string{text.String(), page.String()} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	}
	if strings.Contains(text.String(), "gcp: other clusters") {
		t.Error(text.String())
	}
}
