package kube

import (
	"encoding/binary"
	"net/http"
	"os"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/polltest"
)

// TestLargeClusterIsTakenWithinDefaultBounds lists 5,000 nodes as large as nodes
// are.
func TestLargeClusterIsTakenWithinDefaultBounds(t *testing.T) {
	const nodes = 5000
	ca := newAuthority()
	api := newTLSServer(t, ca, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			refuse(w, http.StatusUnprocessableEntity, "Invalid")
			return
		}
		item := func(i int) []byte {
			raw, err := realisticNode(i).Marshal()
			if err != nil {
				t.Error(err)
			}
			return raw
		}
		size := len(appendField(nil, listItems, item(0)))
		w.Header().Set("Content-Type", typeProtobuf)
		head := appendField([]byte(protobufMagic), unknownTypeMeta, appendField(appendField(nil, 1, []byte("v1")), 2, []byte("NodeList")))
		metadata := appendField(nil, listMetadata, appendField(nil, 2, []byte("5")))
		head = binary.AppendUvarint(head, unknownRaw<<3|wireBytes)
		total := len(metadata)
		for i := range nodes {
			total += len(appendField(nil, listItems, item(i)))
		}
		head = append(binary.AppendUvarint(head, uint64(total)), metadata...)
		_, _ = w.Write(head)
		for i := range nodes {
			_, _ = w.Write(appendField(nil, listItems, item(i)))
		}
		t.Logf("%d MB, %d bytes a node", total>>20, size)
	}))
	bounds := Bounds{Answer: 256 << 20}
	if os.Getenv(hostileEnv+"_UNBOUND") != "" {
		bounds = Bounds{}
	}
	b := &bench{metrics: NewMetrics("test", "test_failures_total")}
	client := clientWith(t, ClientConfig{Access: config.Access{
		APIURL: api.URL, CAFile: writeTemp(t, "ca", ca.pem), TokenFile: writeTemp(t, "token", []byte(secret)),
	}, Bounds: bounds})
	cfg := b.config(nil)
	cfg.Bounds = bounds
	cfg.ListWatch = ListWatch(Of(func() (Client, error) { return client, nil }, Nodes), nil)
	before := peakMemory(os.Getpid())
	b.watch = NewWatch(cfg)
	b.run(t)
	polltest.Until(t, hostilePatience, "sync", b.watch.Synced)
	if n := len(b.nodes()); n != nodes || b.watch.OverQuota() != nil {
		t.Errorf("%d nodes are kept; %v", n, b.watch.OverQuota())
	}
	b.stop()
	t.Logf("%d MiB more at the most, %d MiB in all", (peakMemory(os.Getpid())-before)>>20, peakMemory(os.Getpid())>>20)
}
