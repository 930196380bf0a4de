package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// store writes the two keys of a neighbour into a Secret.
func store(ctx context.Context, s *cli.Session, to *cli.Cluster, from string, h handed) error {
	data := map[string][]byte{from + ".token": []byte(h.token), from + ".ca.crt": []byte(h.ca)}
	_, err := to.Client.CoreV1().Secrets(cli.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secret(h.tool), Labels: map[string]string{manifests.ManagedLabel: manifests.Manager}},
		Data:       data,
	}, metav1.CreateOptions{FieldManager: manifests.Manager})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	return change(ctx, s, to, h.tool, data)
}

// Forget removes the credentials for another cluster from a cluster's Secrets.
func Forget(ctx context.Context, s *cli.Session, c *cli.Cluster, other string) error {
	var errs []error
	for _, tool := range manifests.Tools() {
		err := change(ctx, s, c, tool, map[string][]byte{other + ".token": nil, other + ".ca.crt": nil})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: remove %s from the Secret %s: %w", c.Name, other, secret(tool), err))
		}
	}
	return errors.Join(errs...)
}

// change sets keys of a tool's Secret, and removes those whose value is nil.
func change(ctx context.Context, s *cli.Session, c *cli.Cluster, tool string, data map[string][]byte) error {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Secrets(cli.Namespace).Patch(ctx, secret(tool), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manifests.Manager})
	if !apierrors.IsInvalid(err) {
		return err
	}
	have, unread := c.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, secret(tool), metav1.GetOptions{})
	if unread != nil || have.Immutable == nil || !*have.Immutable {
		return err
	}
	if err := replace(ctx, c, have, data); err != nil {
		return fmt.Errorf("it is immutable, and replacing it failed: %w; "+
			"check whether it exists, and hand over again for all neighbours of %s", err, c.Name)
	}
	// Kubelets don't watch immutable Secrets
	// (https://kubernetes.io/docs/concepts/configuration/secret/#secret-immutable).
	s.Warn("%s: the Secret %s was immutable and was replaced by a mutable one; restart the pods that use it: %s",
		c.Name, secret(tool), restart(c.Access, tool))
	return nil
}

// restart returns the command that restarts the programs of a tool.
func restart(access cli.Access, tool string) string {
	workload := "deployment/semaphore-" + manifests.Account(tool)
	if tool == manifests.WireGuard {
		workload = "daemonset/semaphore-wireguard"
	}
	command := access.Kubectl("-n %s rollout restart %s", cli.Namespace, workload)
	if tool == manifests.WireGuard {
		command += " (or deployment/semaphore-relay, where agents read nodes from it)"
	}
	return command
}

// replaceTimeout bounds the replacement of a Secret. An interruption doesn't end it, as the
// Secret contains the credentials for other neighbours, too.
const replaceTimeout = 20 * time.Second

// replace deletes a Secret, unless it has changed since it was read, and creates it with
// other data.
func replace(ctx context.Context, c *cli.Cluster, have *corev1.Secret, data map[string][]byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), replaceTimeout)
	defer cancel()
	next := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: have.Name, Namespace: have.Namespace, Labels: have.Labels, Annotations: have.Annotations},
		Type:       have.Type, Data: map[string][]byte{},
	}
	for _, from := range []map[string][]byte{have.Data, data} {
		for key, value := range from {
			if next.Data[key] = value; value == nil {
				delete(next.Data, key)
			}
		}
	}
	secrets := c.Client.CoreV1().Secrets(cli.Namespace)
	if err := secrets.Delete(ctx, have.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion},
	}); err != nil {
		return fmt.Errorf("delete it: %w", err)
	}
	if _, err := secrets.Create(ctx, next, metav1.CreateOptions{FieldManager: manifests.Manager}); err != nil {
		return fmt.Errorf("create it: %w", err)
	}
	return nil
}
