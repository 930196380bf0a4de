package coredns

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// created marks a ConfigMap that exists only for our server blocks. It isn't the label of our
// other objects, which are deleted by it even where other keys were added.
const created = "semaphore.uw.io/created-by"

// Write puts the server blocks for zones where the cluster's CoreDNS reads them and their
// owner keeps them, and removes all others of ours; without zones, it removes all. It returns
// the ConfigMaps that it has changed.
func Write(ctx context.Context, client kubernetes.Interface, zones []Zone) (changed []string, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, err := Read(ctx, client)
		if s == nil || err != nil {
			return err
		}
		edits, err := s.plan(zones)
		if err != nil {
			return err
		}
		for _, e := range edits {
			if err := s.write(ctx, client, e); err != nil {
				return fmt.Errorf("ConfigMap %s/%s: %w", s.Namespace, e.name, err)
			}
			changed = append(changed, s.Namespace+"/"+e.name)
		}
		return nil
	})
	return changed, err
}

// edit is a new content of a key.
type edit struct {
	place
	text string
}

// in returns a ConfigMap with the edit; nil: a new one.
func (e edit) in(m *corev1.ConfigMap) *corev1.ConfigMap {
	if m == nil {
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: e.name, Annotations: map[string]string{created: manifests.Manager}}}
	}
	m = m.DeepCopy()
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[e.key] = e.text
	return m
}

// plan returns the edits, removals first: CoreDNS doesn't start with one zone in two server
// blocks.
func (s *Setup) plan(zones []Zone) ([]edit, error) {
	if s.Broken != nil {
		return nil, s.Broken
	}
	blocks := ""
	if len(zones) > 0 {
		if s.Invalid != nil {
			return nil, s.Invalid
		}
		var err error
		if blocks, err = s.Blocks(zones); err != nil {
			return nil, err
		}
	}
	var edits []edit
	for _, at := range s.ours {
		if at != s.target || blocks == "" {
			edits = append(edits, edit{at, withoutBlock(s.data(at.name)[at.key])})
		}
	}
	if blocks == "" || s.Owner.AtOnce {
		return edits, nil
	}
	have := s.data(s.target.name)[s.target.key]
	if want := withBlock(have, blocks); want != have {
		edits = append(edits, edit{s.target, want})
	}
	return edits, s.after(edits).lacks(zones)
}

// Check returns an error if Write would refuse to write the server blocks for zones.
func (s *Setup) Check(zones []Zone) error {
	_, err := s.plan(zones)
	return err
}

// after returns the setup as CoreDNS reads it once edits are written.
func (s *Setup) after(edits []edit) *Setup {
	next := &Setup{Kind: s.Kind, Name: s.Name, Namespace: s.Namespace, maps: maps.Clone(s.maps)}
	for _, e := range edits {
		next.maps[e.name] = e.in(next.maps[e.name])
	}
	if err := next.parse(s.main, s.mounts); err != nil {
		next.Invalid = err
	}
	return next
}

// lacks returns an error if CoreDNS can't load its configuration, or doesn't serve a zone.
func (s *Setup) lacks(zones []Zone) error {
	switch twice := s.Twice(); {
	case s.Invalid != nil:
		return fmt.Errorf("with the server blocks for other clusters: %w", s.Invalid)
	case len(twice) > 0:
		return fmt.Errorf("with the server blocks for other clusters CoreDNS would have two for %s, and not start", strings.Join(twice, ", "))
	}
	for _, zone := range Names(zones) {
		if !s.Serves(zone) {
			return fmt.Errorf("with the server blocks for other clusters in %s CoreDNS would not serve %s", s.Target(), zone)
		}
	}
	return nil
}

// write writes a key. A key of ours without content is removed, and with the last one a
// ConfigMap of ours.
func (s *Setup) write(ctx context.Context, client kubernetes.Interface, e edit) error {
	maps := client.CoreV1().ConfigMaps(s.Namespace)
	m := e.in(s.maps[e.name])
	if s.maps[e.name] == nil {
		m, err := maps.Create(ctx, m, metav1.CreateOptions{FieldManager: manifests.Manager})
		if apierrors.IsAlreadyExists(err) {
			return apierrors.NewConflict(corev1.Resource("configmaps"), e.name, err)
		}
		s.maps[e.name] = m
		return err
	}
	if e.text == "" && strings.HasPrefix(e.key, "semaphore.") {
		delete(m.Data, e.key)
	}
	if len(m.Data)+len(m.BinaryData) == 0 && m.Annotations[created] == manifests.Manager {
		return maps.Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion}})
	}
	m, err := maps.Update(ctx, m, metav1.UpdateOptions{FieldManager: manifests.Manager})
	if err == nil {
		s.maps[e.name] = m
	}
	return err
}
