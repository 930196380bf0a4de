package programs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Enforcer replaces Calico's Felix on a node, as far as semaphorectl and docs/policy.md need
// it: it enforces NetworkPolicies of both of Calico's APIs that allow ingress from
// GlobalNetworkSets for the node's pods, with nftables. Other fields of a policy are an error.
// It proves nothing about Felix itself.
type Enforcer struct {
	node *testbed.Node
	stop context.CancelFunc
	done chan struct{}

	applied string
	err     error // of the last pass
}

// StartEnforcer enforces policies on a node, with a short delay, until Stop.
func StartEnforcer(ctx context.Context, node *testbed.Node) *Enforcer {
	ctx, stop := context.WithCancel(ctx)
	e := &Enforcer{node: node, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		for ctx.Err() == nil {
			if err := e.pass(ctx); ctx.Err() == nil {
				e.err = err
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return e
}

// Stop removes its rules. It also returns the error of its last pass.
func (e *Enforcer) Stop(ctx context.Context) error {
	e.stop()
	<-e.done
	_, err := e.node.Run(ctx, "nft", noRules)
	return errors.Join(e.err, err)
}

// noRules removes the table; it creates it first, so that the deletion can't fail.
const noRules = "table inet enforcer\ndelete table inet enforcer\n"

func (e *Enforcer) pass(ctx context.Context) error {
	pods, err := e.node.Cluster.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.node.Name})
	if err != nil {
		return err
	}
	policies, err := e.calico(ctx, "networkpolicies")
	if err != nil {
		return err
	}
	sets, err := e.calico(ctx, "globalnetworksets")
	if err != nil {
		return err
	}
	rules, err := enforced(pods.Items, policies, sets)
	if err != nil || rules == e.applied {
		return err
	}
	if _, err := e.node.Run(ctx, "nft", rules); err != nil {
		return err
	}
	e.applied = rules
	return nil
}

// calico lists objects in both forms.
func (e *Enforcer) calico(ctx context.Context, resource string) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	for _, gv := range kube.CalicoAPIs("auto") {
		list, err := e.node.Cluster.Dynamic().Resource(gv.WithResource(resource)).List(ctx, metav1.ListOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, err
		}
		all = append(all, list.Items...)
	}
	return all, nil
}

// enforced returns the rules for pods that policies select.
func enforced(pods []corev1.Pod, policies, sets []unstructured.Unstructured) (string, error) {
	var text strings.Builder
	text.WriteString(noRules + "table inet enforcer {\nchain ingress {\ntype filter hook forward priority 0\nct state established,related accept\n")
	for i := range pods {
		pod := &pods[i]
		var let []string
		selected := false
		for j := range policies {
			p := &policies[j]
			spec, _, _ := unstructured.NestedMap(p.Object, "spec")
			own, err := selects(spec["selector"], pod.Labels)
			if err != nil {
				return "", fmt.Errorf("NetworkPolicy %s: %w", p.GetName(), err)
			}
			if !own || p.GetNamespace() != pod.Namespace || pod.Spec.HostNetwork {
				continue
			}
			selected = true
			some, err := allowed(spec, sets)
			if err != nil {
				return "", fmt.Errorf("NetworkPolicy %s: %w", p.GetName(), err)
			}
			let = append(let, some...)
		}
		for _, ip := range pod.Status.PodIPs {
			if !selected {
				continue
			}
			family := "ip"
			if strings.Contains(ip.IP, ":") {
				family = "ip6"
			}
			for _, net := range let {
				if strings.Contains(net, ":") == (family == "ip6") {
					fmt.Fprintf(&text, "%s daddr %s %s saddr %s accept\n", family, ip.IP, family, net)
				}
			}
			fmt.Fprintf(&text, "%s daddr %s drop\n", family, ip.IP)
		}
	}
	text.WriteString("}\n}\n")
	return text.String(), nil
}

// allowed returns the nets that a policy admits.
func allowed(spec map[string]any, sets []unstructured.Unstructured) ([]string, error) {
	types, _, _ := unstructured.NestedStringSlice(spec, "types")
	rules, _, _ := unstructured.NestedSlice(spec, "ingress")
	if !slices.Equal(types, []string{"Ingress"}) || spec["egress"] != nil {
		return nil, fmt.Errorf("its types are %q, want Ingress alone", types)
	}
	var nets []string
	for _, r := range rules {
		rule, _ := r.(map[string]any)
		source, _ := rule["source"].(map[string]any)
		if rule["action"] != "Allow" || source["namespaceSelector"] != "global()" || len(rule) != 2 || len(source) != 2 {
			return nil, fmt.Errorf("a rule isn't one that allows a network set: %v", rule)
		}
		for i := range sets {
			in, err := selects(source["selector"], sets[i].GetLabels())
			if err != nil {
				return nil, err
			}
			if some, _, _ := unstructured.NestedStringSlice(sets[i].Object, "spec", "nets"); in {
				nets = append(nets, some...)
			}
		}
	}
	return nets, nil
}

// selects reports whether a selector of Calico matches labels. It knows key == 'value',
// and && between them.
func selects(selector any, of labels.Set) (bool, error) {
	text, _ := selector.(string)
	holds := true
	for term := range strings.SplitSeq(text, "&&") {
		key, value, equal := strings.Cut(strings.TrimSpace(term), " == ")
		if !equal || len(value) < 2 || value[0] != '\'' || value[len(value)-1] != '\'' {
			return false, fmt.Errorf("selector %q isn't understood", text)
		}
		have, there := of[key]
		holds = holds && there && have == value[1:len(value)-1]
	}
	return holds, nil
}
