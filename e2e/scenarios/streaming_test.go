package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
)

// TestWatchOfAPIServersOldAndNew follows API servers that stream lists and one
// that can't, as those of older releases, and expects no word of a failure.
func TestWatchOfAPIServersOldAndNew(t *testing.T) {
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	clusters, err := tb.StartClusters(within(t, 3*time.Minute),
		testbed.ClusterConfig{Name: "old", APIServerArgs: []string{"--feature-gates=WatchList=false"}}, testbed.ClusterConfig{Name: "new"})
	must(t, err)
	for _, c := range clusters {
		t.Run(c.Name, func(t *testing.T) {
			var log logtest.Buffer
			w := kube.NewWatch(kube.WatchConfig[string]{
				Cluster: c.Name, Kind: "nodes", Object: &corev1.Node{},
				ListWatch: kube.ListWatch(kube.Of(func() (kubernetes.Interface, error) { return c.Client(), nil }, kube.Nodes), nil),
				Keep: func(obj runtime.Object) (string, bool) {
					n, ok := obj.(*corev1.Node)
					if !ok {
						return "", false
					}
					return n.Name, true
				},
				Logger:  slog.New(slog.NewTextHandler(&log, nil)),
				Metrics: kube.NewMetrics("e2e", "e2e_failures_total"),
			})
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() {
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			defer running.Wait()
			defer cancel()
			eventually(t, repair, "the first sync", func(context.Context) error {
				if !w.Synced() {
					return errors.Join(errors.New("not synced"), w.Err())
				}
				return nil
			})
			nodes := c.Client().CoreV1().Nodes()
			_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
			must(t, err)
			eventually(t, repair, "a new node", func(context.Context) error {
				if all, _ := w.Snapshot(); !slices.Contains(all, "n") {
					return fmt.Errorf("nodes %v", all)
				}
				return nil
			})
			if err := w.Err(); err != nil || strings.Contains(log.String(), "level=WARN") {
				t.Errorf("Err() = %v, log:\n%s", err, log.String())
			}
		})
	}
}
