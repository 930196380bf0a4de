package gather

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// notice is what an administrator may want to know before sending the archive.
const notice = `Before you send this archive, look at:
  */objects/nodes.json       names, addresses, labels and annotations of all nodes
  */objects/*.json           namespaces and names of mirrored services, and addresses of their pods
  */objects/configmaps.json  settings, with the addresses of API servers
  */dns/                     CoreDNS's configuration
  */logs/                    whatever our programs and their errors name
Secrets are not in it, and what looks like a token, a private key or a password is replaced.`

// Bounds of an archive.
const (
	maxLines   = 2000      // of a container's log
	maxLog     = 2 << 20   // bytes of it
	maxCluster = 256 << 20 // bytes of a cluster, before compression
)

// kinds are the resources that are read of each cluster. With a namespace only objects in it are
// read, with a selector those with these labels.
//
//nolint:gochecknoglobals // Go has no constants of this type.
var kinds = []struct {
	group, version, resource string
	namespace, selector      string
}{
	{"", "v1", "nodes", "", ""},
	{"", "v1", "namespaces", "", "kubernetes.io/metadata.name=" + cli.Namespace},
	{"", "v1", "pods", cli.Namespace, ""},
	{"", "v1", "configmaps", cli.Namespace, ""},
	{"", "v1", "serviceaccounts", cli.Namespace, ""},
	{"", "v1", "services", cli.Namespace, ""},
	{"", "v1", "events", cli.Namespace, ""},
	{"", "v1", "resourcequotas", cli.Namespace, ""},
	{"apps", "v1", "daemonsets", cli.Namespace, ""},
	{"apps", "v1", "deployments", cli.Namespace, ""},
	{"batch", "v1", "cronjobs", cli.Namespace, ""},
	{"batch", "v1", "jobs", cli.Namespace, ""},
	{"coordination.k8s.io", "v1", "leases", cli.Namespace, ""},
	{"discovery.k8s.io", "v1", "endpointslices", "", discoveryv1.LabelManagedBy + "=" + inspect.ServiceMirror},
	{"networking.k8s.io", "v1", "networkpolicies", cli.Namespace, ""},
	{"networking.k8s.io", "v1", "servicecidrs", "", ""},
	{"policy", "v1", "poddisruptionbudgets", cli.Namespace, ""},
	{"rbac.authorization.k8s.io", "v1", "roles", cli.Namespace, ""},
	{"rbac.authorization.k8s.io", "v1", "rolebindings", cli.Namespace, ""},
	{"rbac.authorization.k8s.io", "v1", "clusterroles", "", ours},
	{"rbac.authorization.k8s.io", "v1", "clusterrolebindings", "", ours},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "", ours},
	{"admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "", ours},
	{"multicluster.x-k8s.io", "v1beta1", "serviceexports", "", ""},
	{"multicluster.x-k8s.io", "v1beta1", "serviceimports", "", ""},
	{"semaphore.uw.io", "v1alpha1", "wireguardpeers", cli.Namespace, ""},
	{"crd.projectcalico.org", "v1", "ippools", "", ""},
	{"crd.projectcalico.org", "v1", "globalnetworksets", "", ""},
}

const ours = "app.kubernetes.io/part-of=kube-semaphore"

// archive is the archive while it is written.
type archive struct {
	tar    *tar.Writer
	now    time.Time
	public map[string]bool // public keys of nodes
	left   int             // bytes that the current cluster may have
	unread []string
}

// collect writes the archive, and returns what it doesn't contain because it couldn't be read.
func collect(ctx context.Context, clusters []*cli.Cluster, to io.Writer) (unread []string, err error) {
	compressed := gzip.NewWriter(to)
	a := &archive{tar: tar.NewWriter(compressed), now: time.Now(), public: map[string]bool{}, left: maxCluster}
	for _, c := range clusters {
		c.Kubeconfig = "" // Its path is in no command of a report to others.
	}
	surveys := inspect.Collect(ctx, clusters)
	for _, survey := range surveys {
		for i := range survey.Nodes.Value {
			for name, value := range survey.Nodes.Value[i].Annotations {
				if strings.HasSuffix(name, "/pubKey") {
					a.public[value] = true
				}
			}
		}
	}
	if err := a.text("README.txt", notice+"\n"); err != nil {
		return nil, err
	}
	for i, c := range clusters {
		a.left = maxCluster
		if err := a.cluster(ctx, c, surveys[i]); err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
	}
	a.left = maxCluster
	if err := a.text("unread.txt", strings.Join(append(a.unread, ""), "\n")); err != nil {
		return nil, err
	}
	return a.unread, errors.Join(a.tar.Close(), compressed.Close())
}

// missing notes what couldn't be read.
func (a *archive) missing(c *cli.Cluster, what string, err error) {
	a.unread = append(a.unread, printable.Text(fmt.Sprintf("%s: %s: %v", c.Name, what, err), 2*printable.Short))
}

// text adds a file. What exceeds the bound of a cluster is left out.
func (a *archive) text(name, text string) error {
	if len(text) <= a.left {
		text = redact(text, a.public)
	}
	if len(text) > a.left {
		a.unread = append(a.unread, fmt.Sprintf("%s: left out, the cluster has more than %d MiB", name, maxCluster>>20))
		return nil
	}
	a.left -= len(text)
	err := a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), ModTime: a.now, Format: tar.FormatPAX})
	if err == nil {
		_, err = io.WriteString(a.tar, text)
	}
	return err
}

// cluster adds one cluster.
func (a *archive) cluster(ctx context.Context, c *cli.Cluster, survey *inspect.Cluster) error {
	// Times of a year after 9999, which a cluster may name, aren't encoded.
	if body, err := json.MarshalIndent(survey, "", " "); err != nil {
		a.missing(c, "survey", err)
	} else if err := a.text(c.Name+"/survey.json", string(body)+"\n"); err != nil {
		return err
	}
	if !survey.Kubernetes.Known() {
		a.missing(c, "API server", errors.New(survey.Kubernetes.Err))
		return nil
	}
	if dns := survey.DNS.Value; dns != nil {
		for _, name := range []string{dns.Main, "coredns-custom", "node-local-dns"} {
			if name == "" {
				continue
			}
			found, err := c.Client.CoreV1().ConfigMaps(dns.Namespace).Get(ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				continue
			case err != nil:
				a.missing(c, "ConfigMap "+name, err)
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(found.Data)) {
				if faults := validation.IsConfigMapKey(key); len(faults) > 0 { // It becomes a path.
					a.missing(c, "ConfigMap "+name, fmt.Errorf("the key %.80q: %s", key, faults[0]))
				} else if err := a.text(c.Name+"/dns/"+name+"/"+key, found.Data[key]); err != nil {
					return err
				}
			}
		}
	}
	var ours []container
	for _, kind := range kinds {
		each := func(*unstructured.Unstructured) error { return nil }
		if kind.resource == "pods" {
			each = func(o *unstructured.Unstructured) error { return containers(o, &ours) }
		}
		if err := a.objects(ctx, c, schema.GroupVersionResource{Group: kind.group, Version: kind.version, Resource: kind.resource}, kind.namespace, kind.selector, each); err != nil {
			return err
		}
	}
	return a.logs(ctx, c, ours)
}

// objects adds the objects of a kind, one per line, and calls each with them.
func (a *archive) objects(ctx context.Context, c *cli.Cluster, of schema.GroupVersionResource, namespace, selector string, each func(*unstructured.Unstructured) error) error {
	var lines bytes.Buffer
	err := cli.ListUntyped(ctx, c.Dynamic.Resource(of).Namespace(namespace), metav1.ListOptions{LabelSelector: selector}, func(o *unstructured.Unstructured) error {
		trim(o)
		line, err := json.Marshal(o.Object)
		if err != nil {
			return err
		}
		if lines.Len()+len(line) > a.left {
			return fmt.Errorf("the cluster has more than %d MiB", maxCluster>>20)
		}
		lines.Write(append(line, '\n'))
		return each(o)
	})
	if apierrors.IsNotFound(err) {
		return nil // The cluster doesn't serve this kind.
	}
	if err != nil {
		a.missing(c, of.Resource, err)
	}
	return a.text(c.Name+"/objects/"+of.Resource+".json", lines.String())
}

// container is one whose log is read.
type container struct {
	pod, name string
	before    bool // it has been restarted
	ready     bool
}

// containers adds those of a pod.
func containers(o *unstructured.Unstructured, all *[]container) error {
	var p corev1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &p); err != nil {
		return err
	}
	if err := inspect.CheckName("a Pod", "metadata.name", p.Name); err != nil {
		return err
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if err := inspect.CheckName("Pod "+p.Name, "containerStatuses.name", s.Name); err != nil {
			return err
		}
		*all = append(*all, container{p.Name, s.Name, s.RestartCount > 0, s.Ready})
	}
	return nil
}

// logs adds the logs of containers, those that aren't ready first.
func (a *archive) logs(ctx context.Context, c *cli.Cluster, all []container) error {
	slices.SortStableFunc(all, func(x, y container) int {
		first := func(c container) int {
			switch {
			case !c.ready:
				return 0
			case c.before:
				return 1
			}
			return 2
		}
		return cmp.Compare(first(x), first(y))
	})
	for _, one := range all {
		if err := a.log(ctx, c, one.pod, one.name, false); err != nil {
			return err
		}
		if one.before {
			if err := a.log(ctx, c, one.pod, one.name, true); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// log adds the end of one log.
func (a *archive) log(ctx context.Context, c *cli.Cluster, pod, name string, before bool) error {
	lines, size := int64(maxLines), int64(maxLog)
	text, err := c.Client.CoreV1().Pods(cli.Namespace).GetLogs(pod, &corev1.PodLogOptions{
		Container: name, Previous: before, TailLines: &lines, LimitBytes: &size, Timestamps: true,
	}).DoRaw(cli.WithRaw(ctx, maxLog))
	file := c.Name + "/logs/" + pod + "/" + name
	if before {
		file += ".before"
	}
	if err != nil {
		a.missing(c, strings.TrimPrefix(file, c.Name+"/"), err)
		return nil
	}
	return a.text(file+".log", string(text))
}
