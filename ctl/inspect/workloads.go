package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Workload is a DaemonSet or Deployment of our programs.
type Workload struct {
	Kind, Name    string
	Wanted, Ready int32
	Image         string

	pullSecret string // the Secret with the registry's credentials, if the pods have one
	// owner is what applies it, other than semaphorectl; empty: nothing is known. foreign is whether
	// semaphorectl hasn't installed it.
	owner       string
	foreign     bool
	remotesFrom string // its own value of RemotesFrom
	settings    []corev1.ConfigMapEnvSource
}

// programs maps names of workloads to tools; semaphore-relay is part of no tool.
var programs = map[string]string{WireGuard: manifests.WireGuard, ServiceMirror: manifests.Mirror, NetworkPolicy: manifests.Policy, Relay: ""}

// Tools returns the tools whose programs are among the workloads of a cluster.
func Tools(workloads []Workload) (names []string) {
	for _, w := range workloads {
		if tool := programs[w.Name]; tool != "" {
			names = append(names, tool)
		}
	}
	slices.Sort(names)
	return names
}

// RemotesFrom is the setting that determines where agents read nodes, and RemotesFromRelay its
// value for those that read the objects of semaphore-relay.
const (
	RemotesFrom      = "SEMAPHORE_REMOTES_FROM"
	RemotesFromRelay = "relay"
)

// readWorkloads reads the workloads of our programs, and further ones with our label.
func readWorkloads(ctx context.Context, client kubernetes.Interface) ([]Workload, error) {
	var found []Workload
	add := func(o metav1.Object, w Workload, s *corev1.PodSpec) {
		if _, ours := programs[o.GetName()]; !ours && o.GetLabels()["app.kubernetes.io/part-of"] != "kube-semaphore" {
			return
		}
		w.Name, w.owner = o.GetName(), owner(o)
		w.foreign = w.owner != "" || !manifests.Ours(o)
		if len(s.ImagePullSecrets) > 0 {
			w.pullSecret = s.ImagePullSecrets[0].Name
		}
		if len(s.Containers) > 0 {
			w.Image = s.Containers[0].Image
			for _, from := range s.Containers[0].EnvFrom {
				if from.ConfigMapRef != nil {
					w.settings = append(w.settings, *from.ConfigMapRef)
				}
			}
			for _, variable := range s.Containers[0].Env {
				if variable.Name == RemotesFrom {
					w.remotesFrom = variable.Value
				}
			}
		}
		found = append(found, w)
	}
	err := cli.List(ctx, client.AppsV1().DaemonSets(cli.Namespace), metav1.ListOptions{}, func(s *appsv1.DaemonSet) error {
		add(s, Workload{Kind: "DaemonSet", Wanted: s.Status.DesiredNumberScheduled, Ready: s.Status.NumberReady}, &s.Spec.Template.Spec)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = cli.List(ctx, client.AppsV1().Deployments(cli.Namespace), metav1.ListOptions{}, func(d *appsv1.Deployment) error {
		w := Workload{Kind: "Deployment", Wanted: 1, Ready: d.Status.ReadyReplicas}
		if d.Spec.Replicas != nil {
			w.Wanted = *d.Spec.Replicas
		}
		add(d, w, &d.Spec.Template.Spec)
		return nil
	})
	return byName(found, func(w *Workload) string { return w.Name }), err
}

// owner returns what applies an object, other than semaphorectl; empty: nothing is known.
func owner(o metav1.Object) string {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	switch {
	case labels["helm.toolkit.fluxcd.io/name"] != "" || labels["kustomize.toolkit.fluxcd.io/name"] != "":
		return "Flux"
	case annotations["argocd.argoproj.io/tracking-id"] != "" || labels["argocd.argoproj.io/instance"] != "":
		return "Argo CD"
	case labels[manifests.ManagedLabel] == "Helm" && !manifests.Ours(o):
		return "the Helm release " + cmp.Or(printable.Text(annotations["meta.helm.sh/release-name"], printable.Short), "unknown")
	}
	return ""
}

// settingsOf returns the ConfigMaps that our programs have their settings from. Kustomize and Helm
// append a sum to the name of the bases.
func settingsOf(workloads []Workload) (all []corev1.ConfigMapEnvSource) {
	for _, w := range workloads {
		if _, ours := programs[w.Name]; ours {
			all = append(all, w.settings...)
		}
	}
	return all
}

// readSettings reads the first of ConfigMaps with settings; it is an error if one doesn't exist
// that isn't optional: without settings the remotes are unknown.
func readSettings(ctx context.Context, client kubernetes.Interface, from []corev1.ConfigMapEnvSource) (Settings, error) {
	for _, ref := range from {
		found, err := client.CoreV1().ConfigMaps(cli.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && ref.Optional != nil && *ref.Optional {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("settings of our programs: %w", err)
		}
		if settings, err := ParseSettings(cli.Namespace+"/"+ref.Name, found.Data); err != nil || len(settings) > 0 {
			return settings, err
		}
	}
	return nil, nil
}
