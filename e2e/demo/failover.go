package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// dies unplugs aws while a pod of gcp requests a service of both clusters.
func (s *show) dies(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	client, there, here := s.pair.Pods[2], s.pair.Pods[0], s.pair.Pods[3]
	for _, pod := range []*testbed.Pod{there, here} {
		if err := putService(ctx, "shop", "web", "global-service", pod); err != nil {
			return "", err
		}
	}
	url, err := s.serves(ctx, client, "gl-shop-73736d-web", there, here)
	if err != nil {
		return "", err
	}
	asking := programs.StartClient(ctx, client, url)
	defer asking.Stop()

	s.say("unplugging all of aws: its nodes and its API server")
	at := time.Now()
	if err := s.plug(s.pair.Testbed.Drop, s.pair.AWS.CutAPI); err != nil {
		return "", err
	}
	err = testbed.Wait(ctx, "all requests to be answered", func(context.Context) error {
		recently := time.Now().Add(-4 * time.Second)
		failed, _ := asking.Failed(recently)
		if failed > 0 || recently.Before(at) {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	failed, last := asking.Failed(at)
	noticed := fmt.Sprintf("%d requests failed at 10 per second, the last one after %.1f s", failed, max(0, last.Sub(at).Seconds()))
	s.say("%s; without failover, half of them would fail until an operator intervenes", noticed)
	out, err := s.pair.GCP.Kubectl(ctx, "-n", programs.Namespace, "get", "leases", "-l", "wireguard.semaphore.uw.io/path-report=true",
		`--output=jsonpath={range .items[*]}{.metadata.name}: {.metadata.annotations.wireguard\.semaphore\.uw\.io/paths-down}{"\n"}{end}`)
	if err != nil {
		return "", err
	}
	s.print("kubectl --context=gcp --namespace=sys-semaphore get leases", out)

	at = time.Now()
	if err := s.plug(s.pair.Testbed.Restore, s.pair.AWS.RestoreAPI); err != nil {
		return "", err
	}
	var back time.Time
	err = testbed.Wait(ctx, "aws to be used again", func(context.Context) error {
		if back = asking.First(at, there); back.IsZero() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	s.say("plugged in again: aws answers after %.1f s", back.Sub(at).Seconds())
	return noticed, s.pair.WaitConnected(ctx)
}

// plug cuts or restores all paths between the clusters, and the API server of aws.
func (s *show) plug(paths func(a, b *testbed.Node) error, api func() error) error {
	for _, a := range s.pair.AWS.Nodes() {
		for _, b := range s.pair.GCP.Nodes() {
			if err := paths(a, b); err != nil {
				return err
			}
		}
	}
	return api()
}

// serves waits until a service of the mirror namespace of gcp is answered by each of
// the pods, and returns its URL.
func (s *show) serves(ctx context.Context, client *testbed.Pod, name string, pods ...*testbed.Pod) (url string, err error) {
	err = testbed.Wait(ctx, name+" to be answered by all", func(ctx context.Context) error {
		service, err := s.pair.GCP.Client().CoreV1().Services(programs.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		url = fmt.Sprintf("http://%s:8888/", service.Spec.ClusterIP)
		answered := map[string]bool{}
		for range 20 {
			asking, cancel := context.WithTimeout(ctx, time.Second)
			body, err := client.Get(asking, url)
			cancel()
			if err != nil {
				return err
			}
			who, _, _ := strings.Cut(body, " ")
			answered[who] = true
		}
		for _, pod := range pods {
			if !answered[pod.Name] {
				return fmt.Errorf("not yet by %s", pod.Name)
			}
		}
		return nil
	})
	return url, err
}
