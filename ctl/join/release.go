package join

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/kube"
	releasecommon "helm.sh/helm/v4/pkg/release/common"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/storage"
	"helm.sh/helm/v4/pkg/storage/driver"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/discovery"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// installed is the release of the chart in a cluster.
type installed struct {
	c *cli.Cluster
	// last is its last revision; nil: there is none.
	last *release.Release
}

const (
	// maxHistory is how many revisions are kept for helm rollback, as by Helm.
	maxHistory = 10
	// maxRevisions bounds the memory of all revisions, decoded. One needs some megabytes.
	maxRevisions = 64 << 20
	// concurrently is the time within which another client's installation or upgrade may still run.
	concurrently = 5 * time.Minute
	// byAnnotation is on the chart of revisions that semaphorectl makes. Helm copies labels of a revision to
	// the next ones, also to those that others make.
	byAnnotation = "semaphore.uw.io/by"
)

// read reads the last revision.
func (r *installed) read(ctx context.Context) error {
	found, err := r.storage(ctx).Last(manifests.Release)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		r.last = nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the Helm release %s: %w", manifests.Release, err)
	}
	last, is := found.(*release.Release)
	if !is || last.Info == nil || last.Chart == nil {
		return fmt.Errorf("read the Helm release %s: an incomplete revision: see helm history", manifests.Release)
	}
	r.last = last
	return nil
}

func (r *installed) storage(ctx context.Context) *storage.Storage {
	s := storage.Init(driver.NewSecrets(revisions{ctx, r.c.Client.CoreV1().Secrets(cli.Namespace)}))
	s.MaxHistory = maxHistory
	return s
}

// revisions are the Secrets with the revisions of releases, for Helm, whose requests have no context and
// which decodes whatever a cluster has stored. It refuses what needs too much memory. Reads end with ctx,
// writes don't: one records how an interrupted operation has ended.
type revisions struct {
	ctx context.Context
	typedcorev1.SecretInterface
}

// writeTime bounds the write of a revision.
const writeTime = 20 * time.Second

func (s revisions) Create(ctx context.Context, secret *corev1.Secret, o metav1.CreateOptions) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return s.SecretInterface.Create(ctx, secret, o)
}

func (s revisions) Update(ctx context.Context, secret *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return s.SecretInterface.Update(ctx, secret, o)
}

func (s revisions) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return s.SecretInterface.Delete(ctx, name, o)
}

func (s revisions) Get(_ context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error) {
	found, err := s.SecretInterface.Get(s.ctx, name, o) //nolint:contextcheck // Helm's never ends.
	if err != nil {
		return nil, err
	}
	return found, fit(*found)
}

func (s revisions) List(_ context.Context, o metav1.ListOptions) (*corev1.SecretList, error) {
	found, err := s.SecretInterface.List(s.ctx, o) //nolint:contextcheck // Helm's never ends.
	if err != nil {
		return nil, err
	}
	return found, fit(found.Items...)
}

func fit(secrets ...corev1.Secret) error {
	left := int64(maxRevisions)
	for i := range secrets {
		text, err := base64.StdEncoding.DecodeString(string(secrets[i].Data["release"]))
		if err != nil {
			continue // Helm doesn't decode it, either.
		}
		if unpacked, err := gzip.NewReader(bytes.NewReader(text)); err == nil {
			// A text needs more than its length.
			if text, err = io.ReadAll(io.LimitReader(unpacked, left)); err != nil {
				return fmt.Errorf("the Secret %.253q: %w", secrets[i].Name, err)
			}
		}
		weight, err := cli.Weight(text)
		if err != nil {
			return fmt.Errorf("the Secret %.253q: %w", secrets[i].Name, err)
		}
		if left -= weight; left <= 0 {
			return fmt.Errorf("revisions of releases need more than %d MiB of memory: delete Secrets of the type helm.sh/release.v1", maxRevisions>>20)
		}
	}
	return nil
}

// remote returns the values of a remote in the last revision, also where that has failed; nil: there are none.
func (r *installed) remote(name cluster.Name) map[string]any {
	remotes, _ := r.values()["remotes"].(map[string]any)
	of, _ := remotes[string(name)].(map[string]any)
	return of
}

// values are those of the last revision.
func (r *installed) values() map[string]any {
	if r == nil || r.last == nil {
		return nil
	}
	return r.last.Config
}

// is reports whether the last revision is what values render to, and was completed.
func (r *installed) is(made *release.Release) bool {
	return r.last != nil && r.last.Info.Status == releasecommon.StatusDeployed && r.last.Manifest == made.Manifest
}

// adopt records what another one than Helm has installed as the first revision, so that the next one
// removes what it doesn't have. Nothing else is changed.
func (r *installed) adopt(ctx context.Context, values map[string]any) error {
	made, err := manifests.Dry(values, true)
	if err != nil {
		return err
	}
	made.SetStatus(releasecommon.StatusDeployed, "Recorded from an installation without Helm")
	if err := r.storage(ctx).Create(made); err != nil {
		return fmt.Errorf("record the Helm release %s: %w", manifests.Release, err)
	}
	r.last = made
	return nil
}

// settle ends an operation that was interrupted: Helm would refuse the next one for ever.
func (r *installed) settle(ctx context.Context) error {
	of, others := r.last.Chart.Metadata, false
	switch r.last.Info.Status {
	case releasecommon.StatusDeployed, releasecommon.StatusFailed, releasecommon.StatusSuperseded:
		return nil
	case releasecommon.StatusPendingRollback: // It has the chart of an earlier revision.
		others = true
	}
	if (others || of == nil || of.Annotations[byAnnotation] != manifests.Manager) && time.Since(r.last.Info.LastDeployed) < concurrently {
		return fmt.Errorf("revision %d of the Helm release %s is %s: wait until Helm has finished, or %s from now on semaphorectl continues it",
			r.last.Version, manifests.Release, r.last.Info.Status, concurrently)
	}
	r.last.SetStatus(releasecommon.StatusFailed, "Interrupted")
	return r.storage(ctx).Update(r.last)
}

// helmManager is the name by which Helm's client owns fields: that of the program helm, so that its
// later upgrades are no conflicts.
const helmManager = "helm"

var setManager = sync.OnceFunc(func() { kube.ManagedFieldsManager = helmManager })

func (r *installed) configuration(ctx context.Context, reached func() error) (*action.Configuration, *phased, error) {
	setManager()
	transport, err := rest.TransportFor(r.c.Config)
	if err != nil {
		return nil, nil, err
	}
	client := kube.New(getter{ctx, r.c, &rest.Config{
		Host: r.c.Config.Host, APIPath: r.c.Config.APIPath, Transport: during{ctx, transport}, QPS: -1, Burst: -1, WarningHandlerWithContext: r.c.Config.WarningHandlerWithContext,
	}})
	client.Namespace = cli.Namespace
	client.SetLogger(slog.DiscardHandler)
	configuration := action.NewConfiguration(action.ConfigurationSetLogger(slog.DiscardHandler))
	phases := &phased{Client: client, ctx: ctx, c: r.c, reached: reached}
	if r.last != nil {
		if phases.made, err = r.made(ctx); err != nil {
			return nil, nil, err
		}
	}
	configuration.Releases, configuration.KubeClient, configuration.Capabilities = r.storage(ctx), phases, manifests.Capabilities()
	return configuration, phases, nil
}

// made returns the manifests of the last revision that was completed and of all later ones: each may have
// created objects that no other one has.
func (r *installed) made(ctx context.Context) ([]string, error) {
	all, err := r.storage(ctx).History(manifests.Release)
	if err != nil {
		return nil, fmt.Errorf("read the Helm release %s: %w", manifests.Release, err)
	}
	of := map[int]string{}
	completed := 0
	for _, one := range all {
		if revision, is := one.(*release.Release); is && revision.Info != nil {
			of[revision.Version] = revision.Manifest
			if slices.Contains([]releasecommon.Status{releasecommon.StatusDeployed, releasecommon.StatusSuperseded}, revision.Info.Status) {
				completed = max(completed, revision.Version)
			}
		}
	}
	maps.DeleteFunc(of, func(version int, _ string) bool { return version < completed })
	return slices.Collect(maps.Values(of)), nil
}

// apply installs or upgrades the release. Cleanup skips the validation of values: a wrong setting must not
// keep a cluster from being left. Reached is called twice: when rights and settings are applied, and when
// programs are.
func (r *installed) apply(ctx context.Context, values map[string]any, cleanup bool, reached func() error) error {
	c, err := manifests.Chart()
	if err != nil {
		return err
	}
	c.Metadata.Annotations = map[string]string{byAnnotation: manifests.Manager}
	configuration, _, err := r.configuration(ctx, reached)
	if err != nil {
		return err
	}
	if r.last == nil {
		install := action.NewInstall(configuration)
		install.ReleaseName, install.Namespace = manifests.Release, cli.Namespace
		install.TakeOwnership, install.ForceConflicts, install.DisableOpenAPIValidation, install.DisableHooks = true, true, true, true
		install.WaitStrategy, install.SkipSchemaValidation = kube.HookOnlyStrategy, cleanup
		_, err = install.Run(c, values)
	} else {
		if err := r.settle(ctx); err != nil {
			return err
		}
		upgrade := action.NewUpgrade(configuration)
		upgrade.Namespace, upgrade.MaxHistory, upgrade.ServerSideApply, upgrade.ResetValues = cli.Namespace, maxHistory, "true", true
		upgrade.TakeOwnership, upgrade.ForceConflicts, upgrade.DisableOpenAPIValidation, upgrade.DisableHooks = true, true, true, true
		upgrade.WaitStrategy, upgrade.SkipSchemaValidation = kube.HookOnlyStrategy, cleanup
		_, err = upgrade.Run(manifests.Release, c, values)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("Helm release %s: %w", manifests.Release, err), context.Cause(ctx)) //nolint:staticcheck // A name.
	}
	return r.read(ctx)
}

// uninstall removes the release. Helm would forget objects that it can't read.
func (r *installed) uninstall(ctx context.Context) error {
	if r.last == nil {
		return nil
	}
	configuration, phases, err := r.configuration(ctx, nil)
	if err != nil {
		return err
	}
	if err = phases.prune(nil); err == nil {
		uninstall := action.NewUninstall(configuration)
		uninstall.DisableHooks, uninstall.WaitStrategy = true, kube.HookOnlyStrategy
		_, err = uninstall.Run(manifests.Release)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("uninstall the Helm release %s: %w", manifests.Release, err), context.Cause(ctx))
	}
	return nil
}

// phased is Helm's client, which applies in the order that a mesh needs: rights and settings before
// programs, so that tokens are handed over between them; and what is removed after both, when no pod
// needs it any more.
type phased struct {
	*kube.Client
	ctx     context.Context
	c       *cli.Cluster
	made    []string // manifests of what may exist
	reached func() error
}

// Build implements kube.Interface. It leaves out objects of kinds that the cluster doesn't serve: it has none,
// and Helm would refuse all others with them. Those of a new revision are checked before.
func (p *phased) Build(from io.Reader, validate bool) (kube.ResourceList, error) {
	text, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	objects, err := manifests.Decode(text)
	if err != nil {
		return nil, err
	}
	var served bytes.Buffer
	for _, o := range objects {
		if _, err := p.c.ResourceOf(p.ctx, o.GroupVersionKind()); meta.IsNoMatchError(err) {
			continue
		}
		text, err := o.MarshalJSON()
		if err != nil {
			return nil, err
		}
		served.WriteString("---\n")
		served.Write(text) // It ends with a newline.
	}
	return p.Client.Build(&served, validate)
}

func program(info *resource.Info) bool {
	return slices.Contains(workloads, info.Mapping.GroupVersionKind.Kind)
}

func (p *phased) Create(all kube.ResourceList, options ...kube.ClientCreateOption) (*kube.Result, error) {
	for _, programs := range []bool{false, true} {
		// Without resources Helm's client returns an error.
		if part := all.Filter(func(info *resource.Info) bool { return program(info) == programs }); len(part) > 0 {
			if _, err := p.Client.Create(part, options...); err != nil {
				return &kube.Result{}, err
			}
		}
		if err := p.reached(); err != nil {
			return &kube.Result{}, err
		}
	}
	return &kube.Result{Created: all}, nil
}

func (p *phased) Update(before, after kube.ResourceList, options ...kube.ClientUpdateOption) (*kube.Result, error) {
	for _, programs := range []bool{false, true} {
		part := func(info *resource.Info) bool { return program(info) == programs }
		if _, err := p.Client.Update(before.Intersect(after).Filter(part), after.Filter(part), options...); err != nil {
			return &kube.Result{}, err
		}
		if err := p.reached(); err != nil {
			return &kube.Result{}, err
		}
	}
	return &kube.Result{}, p.prune(after)
}

// prune deletes what the release has besides some objects. Unlike Helm it fails if an object can't be read.
func (p *phased) prune(stay kube.ResourceList) error {
	var errs []error
	for _, made := range p.made {
		all, err := p.Build(strings.NewReader(made), false)
		if err != nil {
			return err
		}
		for _, info := range all.Difference(stay) {
			// Calico shows one pool in two API groups.
			if kind := info.Mapping.GroupVersionKind.Kind; kind != "IPPool" || !slices.ContainsFunc(stay, func(o *resource.Info) bool {
				return o.Name == info.Name && o.Mapping.GroupVersionKind.Kind == kind
			}) {
				errs = append(errs, remove(info))
			}
		}
	}
	return errors.Join(errs...)
}

// remove deletes an object of the release, unless it is kept.
func remove(info *resource.Info) error {
	fail := func(err error) error {
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("delete %s %s: %w", info.Mapping.GroupVersionKind.Kind, info.Name, err)
	}
	if err := info.Get(); err != nil {
		return fail(err)
	}
	o, err := meta.Accessor(info.Object)
	if err != nil || o.GetAnnotations()[kube.ResourcePolicyAnno] == kube.KeepPolicy {
		return err
	}
	background := metav1.DeletePropagationBackground
	_, err = resource.NewHelper(info.Client, info.Mapping).DeleteWithOptions(info.Namespace, info.Name,
		&metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: metav1.NewUIDPreconditions(string(o.GetUID()))})
	return fail(err)
}

// during sends requests that end with a context: Helm's have none.
type during struct {
	ctx  context.Context
	next http.RoundTripper
}

func (d during) RoundTrip(request *http.Request) (*http.Response, error) {
	return d.next.RoundTrip(request.WithContext(d.ctx))
}

// getter is the access to a cluster for Helm. It finds the resources of kinds as cli.Cluster does, one
// group version at a time.
type getter struct {
	ctx    context.Context
	c      *cli.Cluster
	config *rest.Config
}

func (g getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

func (g getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return nil, errors.New("discovery isn't used")
}

func (g getter) ToRESTMapper() (meta.RESTMapper, error) {
	return mapper{meta.NewDefaultRESTMapper(nil), g}, nil
}

func (g getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(clientcmdapi.Config{}, &clientcmd.ConfigOverrides{})
}

type mapper struct {
	meta.RESTMapper
	getter
}

func (m mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	r, err := m.c.ResourceOf(m.ctx, kind.WithVersion(cmp.Or(append(versions, "")...)))
	if err != nil {
		return nil, err
	}
	mapping := &meta.RESTMapping{Resource: r.GroupVersionResource, GroupVersionKind: r.GroupVersion().WithKind(r.Kind), Scope: meta.RESTScopeRoot}
	if r.Namespaced {
		mapping.Scope = meta.RESTScopeNamespace
	}
	return mapping, nil
}

// running is an installation or upgrade that stops after each phase.
type running struct {
	reached chan error // nil after each phase, and the error of its end; closed at its end
	proceed chan struct{}
}

var errStopped = errors.New("stopped by the failure of another step")

// run starts do, which calls reached after each phase.
func run(do func(reached func() error) error) *running {
	r := &running{make(chan error), make(chan struct{})}
	go func() {
		defer close(r.reached)
		err := do(func() error {
			r.reached <- nil
			if _, proceeds := <-r.proceed; !proceeds {
				return errStopped
			}
			return nil
		})
		if err != nil {
			r.reached <- err
		}
	}()
	return r
}

// advance lets it proceed to the next phase, or to its end.
func (r *running) advance() error {
	select {
	case r.proceed <- struct{}{}:
		return <-r.reached
	case err := <-r.reached:
		return err
	}
}

// end waits until it has ended, in the phase in which it is.
func (r *running) end() {
	close(r.proceed)
	for range r.reached { //nolint:revive // Until it is closed.
	}
}
