package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// logNamespace is where fluentd and forwarder are in the source documents.
const logNamespace = "sys-log"

// names mirrors fluentd of aws into gcp, and requests it there by name.
func (s *show) names(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	server, client := s.pair.Pods[0], s.pair.Pods[2]
	if err := putService(ctx, logNamespace, "fluentd", "mirror-service", server); err != nil {
		return "", err
	}
	s.say("starting kube-proxy, and CoreDNS with the server blocks of join, in gcp")
	if _, err := client.Node.StartKubeProxy(ctx); err != nil {
		return "", err
	}
	var err error
	s.dns, err = programs.StartInstalledDNS(ctx, s.binaries[tools.CoreDNS], client.Node, s.dir)
	if err != nil {
		return "", err
	}

	const name = "fluentd.sys-log.svc.cluster.aws"
	var answer string
	err = testbed.Wait(ctx, name+" to be answered", func(ctx context.Context) error {
		records, err := s.dns.Ask(ctx, client, name, dnsmessage.TypeA)
		if err == nil && len(records) != 1 {
			err = fmt.Errorf("%d records", len(records))
		}
		if err != nil {
			return err
		}
		fields := strings.Fields(records[0])
		// Requests before kube-proxy has the service aren't answered.
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		answer, err = client.Get(ctx, fmt.Sprintf("http://%s:8888/", fields[len(fields)-1]))
		if err == nil {
			s.print(client.Name+"# drill "+name, records[0])
		}
		return err
	})
	if err != nil {
		return "", err
	}
	out, err := s.pair.GCP.Kubectl(ctx, "-n", programs.Namespace, "get", "service,endpointslice")
	if err != nil {
		return "", err
	}
	s.print("kubectl --context=gcp --namespace=sys-semaphore get service,endpointslice", out)
	s.say("%s  GET http://%s:8888/  %s", client.Name, name, strings.TrimSpace(answer))
	return "answered by " + strings.Fields(answer)[0], nil
}

// export exports a service of both clusters, and requests it in gcp by its name in the cluster
// set until pods of both have answered.
func (s *show) export(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	file := filepath.Join(s.dir, "export.yaml")
	const object = "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: cart, namespace: store}\n"
	if err := os.WriteFile(file, []byte(object), 0o644); err != nil {
		return "", err
	}
	client := s.pair.Pods[2]
	for _, server := range []*testbed.Pod{s.pair.Pods[0], s.pair.Pods[3]} {
		if err := putService(ctx, "store", "cart", "", server); err != nil {
			return "", err
		}
		if err := server.Node.Cluster.Apply(ctx, file); err != nil {
			return "", err
		}
	}
	s.say("aws and gcp have a Service and a ServiceExport store/cart")
	const name = "cart.store.svc.clusterset.local"
	answers := map[string]bool{} // by cluster
	err := testbed.Wait(ctx, name+" to be answered by both clusters", func(ctx context.Context) error {
		records, err := s.dns.Ask(ctx, client, name, dnsmessage.TypeA)
		if err == nil && len(records) != 1 {
			err = fmt.Errorf("%d records", len(records))
		}
		if err != nil {
			return err
		}
		fields := strings.Fields(records[0])
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		answer, err := client.Get(ctx, fmt.Sprintf("http://%s:8888/", fields[len(fields)-1]))
		if err != nil {
			return err
		}
		cluster, _, _ := strings.Cut(answer, "-")
		if !answers[cluster] {
			answers[cluster] = true
			s.say("%s  GET http://%s:8888/  %s", client.Name, name, strings.TrimSpace(answer))
		}
		if len(answers) < 2 {
			return errors.New("one of two clusters has answered")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	out, err := s.pair.GCP.Kubectl(ctx, "-n", "store", "get", "serviceimports,services,endpointslices")
	if err != nil {
		return "", err
	}
	s.print("kubectl --context=gcp --namespace=store get serviceimports,services,endpointslices", out)
	return "both clusters answer " + name, nil
}

// putService makes a pod of its cluster the endpoint of a service with a label of the
// service mirror, or with none.
func putService(ctx context.Context, namespace, service, label string, pod *testbed.Pod) error {
	client := pod.Node.Cluster.Client()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	labels := map[string]string{}
	if label != "" {
		labels["mirror.semaphore.uw.io/"+label] = "true"
	}
	if _, err := client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service, Labels: maps.Clone(labels)},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 8888}}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	port, name, ready := int32(programs.PodPort), "http", true
	labels[discoveryv1.LabelServiceName] = service
	_, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: labels},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{pod.Addresses[0].String()}, NodeName: &pod.Node.Name,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}},
	}, metav1.CreateOptions{})
	return err
}

// sets makes a network set of aws of the forwarder pods of gcp, and lets it
// follow a rollout.
func (s *show) sets(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	calico, err := policy.NewCalico(s.pair.AWS.RESTConfig(), "auto")
	if err != nil {
		return "", err
	}
	sets, err := calico.Sets(ctx)
	if err != nil {
		return "", err
	}

	client := s.pair.GCP.Client()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: logNamespace},
	}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	var nets []string
	for rollout, name := range []string{"forwarder-1", "forwarder-2"} {
		pod, err := s.pair.Agents[2].Node.AddPod(ctx, testbed.PodConfig{Name: name, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: logNamespace, Labels: map[string]string{"policy.semaphore.uw.io/name": "forwarder"},
		}}})
		if err != nil {
			return "", err
		}
		if rollout > 0 {
			now := int64(0)
			if err := client.CoreV1().Pods(logNamespace).Delete(ctx, "forwarder-1", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				return "", err
			}
		}
		err = testbed.Wait(ctx, "the network set with "+name, func(ctx context.Context) error {
			set, err := sets.Get(ctx, "gcp-sys-log-forwarder", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if nets = set.Spec.Nets; len(nets) != 2 || nets[0] != pod.VirtualAddresses()[0].String()+"/32" {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil {
			return "", err
		}
		out, err := s.pair.AWS.Kubectl(ctx, "get", "globalnetworksets.projectcalico.org", "gcp-sys-log-forwarder",
			"--output=jsonpath={.metadata.name}: {.spec.nets} {.metadata.labels}")
		if err != nil {
			return "", err
		}
		s.print("kubectl --context=aws get globalnetworkset gcp-sys-log-forwarder", out)
	}
	return "gcp-sys-log-forwarder follows a rollout: " + strings.Join(nets, ", "), nil
}
