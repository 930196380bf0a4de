package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// fieldManager names us in metadata.managedFields.
const fieldManager = managedBy

// writeTimeout bounds one write.
const writeTimeout = 30 * time.Second

// errForeign says that somebody else's object is where ours should be. Only a
// person can decide which of the two may stay.
var errForeign = errors.New("in the way and not ours")

// writer changes objects of the mirror namespace. Each change names the object
// that it is meant for, so that one which took its place is left alone.
type writer struct {
	client    kubernetes.Interface
	namespace string
	sums      summer
	log       *slog.Logger
	count     func(kind, verb string)
}

// mergePatch is a JSON merge patch (RFC 7386), in which null takes a field away.
type mergePatch map[string]any

func (w *writer) createService(ctx context.Context, t *target) (*ownService, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.count("service", "create")
	made, err := w.client.CoreV1().Services(w.namespace).Create(ctx, t.service(w.namespace), metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("create service: %w", err)
	}
	w.log.InfoContext(ctx, "service created", "service", t.name, "origin", t.id.String())
	return w.sums.ownService(made), nil
}

func (w *writer) patchService(ctx context.Context, have *ownService, t *target) (*ownService, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	want := t.service(w.namespace)
	spec := mergePatch{
		"type":                     want.Spec.Type,
		"ports":                    want.Spec.Ports,
		"selector":                 nil,
		"externalIPs":              nil,
		"loadBalancerIP":           nil,
		"externalName":             nil,
		"sessionAffinity":          want.Spec.SessionAffinity,
		"sessionAffinityConfig":    want.Spec.SessionAffinityConfig,
		"publishNotReadyAddresses": want.Spec.PublishNotReadyAddresses,
		"internalTrafficPolicy":    corev1.ServiceInternalTrafficPolicyCluster,
		"trafficDistribution":      want.Spec.TrafficDistribution,
	}
	if p := want.Spec.IPFamilyPolicy; p != nil {
		spec["ipFamilyPolicy"] = *p
	}
	if len(want.Spec.IPFamilies) > 0 {
		spec["ipFamilies"] = want.Spec.IPFamilies
	}
	patch, err := json.Marshal(mergePatch{
		"metadata": mergePatch{
			"uid":         have.uid,
			"labels":      marks(want.Labels, labelMirrored, labelGlobal, labelPrefix),
			"annotations": marks(want.Annotations, annotCluster, annotNamespace, annotName, annotClusters, annotAccepted),
		},
		"spec": spec,
	})
	if err != nil {
		return nil, fmt.Errorf("patch service: %w", err)
	}
	w.count("service", "patch")
	made, err := w.client.CoreV1().Services(w.namespace).Patch(ctx, t.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("patch service: %w", err)
	}
	w.log.InfoContext(ctx, "service changed", "service", t.name, "origin", t.id.String())
	return w.sums.ownService(made), nil
}

// marks returns all the keys: those that are wanted, and null for the others.
func marks(want map[string]string, keys ...string) mergePatch {
	m := mergePatch{}
	for _, k := range keys {
		if v, ok := want[k]; ok {
			m[k] = v
		} else {
			m[k] = nil
		}
	}
	return m
}

func (w *writer) deleteService(ctx context.Context, have *ownService, why string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.count("service", "delete")
	err := w.client.CoreV1().Services(w.namespace).Delete(ctx, have.name, exactly(have.uid))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete service: %w", err)
	}
	w.log.InfoContext(ctx, "service deleted", "service", have.name, "reason", why)
	return nil
}

func exactly(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

func (w *writer) createSlice(ctx context.Context, t *target, object *discoveryv1.EndpointSlice) (*ownSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.count("endpointslice", "create")
	made, err := w.client.DiscoveryV1().EndpointSlices(w.namespace).Create(ctx, object, metav1.CreateOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("create endpoint slice %s: %w", object.Name, err)
	}
	w.log.DebugContext(ctx, "endpoint slice created", "service", t.name, "slice", object.Name, "endpoints", len(object.Endpoints))
	return w.sums.ownSlice(made), nil
}

func (w *writer) patchSlice(ctx context.Context, have *ownSlice, t *target, want *discoveryv1.EndpointSlice) (*ownSlice, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patch, err := json.Marshal(mergePatch{
		"metadata": mergePatch{
			"uid":         have.uid,
			"labels":      marks(want.Labels, discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, corev1.IsHeadlessService),
			"annotations": marks(want.Annotations, annotCluster, annotNamespace, annotName),
		},
		"endpoints": want.Endpoints,
		"ports":     want.Ports,
	})
	if err != nil {
		return nil, fmt.Errorf("patch endpoint slice %s: %w", want.Name, err)
	}
	w.count("endpointslice", "patch")
	made, err := w.client.DiscoveryV1().EndpointSlices(w.namespace).Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("patch endpoint slice %s: %w", want.Name, err)
	}
	w.log.DebugContext(ctx, "endpoint slice changed", "service", t.name, "slice", want.Name, "endpoints", len(want.Endpoints))
	return w.sums.ownSlice(made), nil
}

func (w *writer) deleteSlice(ctx context.Context, have *ownSlice, service string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.count("endpointslice", "delete")
	err := w.client.DiscoveryV1().EndpointSlices(w.namespace).Delete(ctx, have.name, exactly(have.uid))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete endpoint slice %s: %w", have.name, err)
	}
	w.log.DebugContext(ctx, "endpoint slice deleted", "service", service, "slice", have.name)
	return nil
}

// putEndpoints creates or replaces an Endpoints object.
func (w *writer) putEndpoints(ctx context.Context, have *ownEndpoints, want *corev1.Endpoints) (*ownEndpoints, error) { //nolint:staticcheck // See ownEndpoints.
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	api := w.client.CoreV1().Endpoints(w.namespace)
	if have == nil {
		w.count("endpoints", "create")
		made, err := api.Create(ctx, want, metav1.CreateOptions{FieldManager: fieldManager})
		if err != nil {
			return nil, fmt.Errorf("create endpoints: %w", err)
		}
		return w.sums.ownEndpoints(made), nil
	}
	// The version makes it an error when the object isn't what was compared.
	want.UID, want.ResourceVersion = have.uid, have.version
	w.count("endpoints", "update")
	made, err := api.Update(ctx, want, metav1.UpdateOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, fmt.Errorf("update endpoints: %w", err)
	}
	return w.sums.ownEndpoints(made), nil
}

func (w *writer) deleteEndpoints(ctx context.Context, have *ownEndpoints) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.count("endpoints", "delete")
	err := w.client.CoreV1().Endpoints(w.namespace).Delete(ctx, have.name, exactly(have.uid))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete endpoints: %w", err)
	}
	return nil
}
