package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// store writes the two keys of a neighbour into a Secret.
func store(ctx context.Context, to *cli.Cluster, from string, h handed) error {
	data := map[string][]byte{from + ".token": []byte(h.token), from + ".ca.crt": []byte(h.ca)}
	_, err := to.Client.CoreV1().Secrets(cli.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: secret(h.tool), Labels: map[string]string{manifests.ManagedLabel: manifests.Manager}},
		Data:       data,
	}, metav1.CreateOptions{FieldManager: manifests.Manager})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	return change(ctx, to, h.tool, data)
}

// Forget removes the credentials for another cluster from a cluster's Secrets.
func Forget(ctx context.Context, c *cli.Cluster, other string) error {
	var errs []error
	for _, tool := range manifests.Tools() {
		err := change(ctx, c, tool, map[string][]byte{other + ".token": nil, other + ".ca.crt": nil})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: remove %s from the Secret %s: %w", c.Name, other, secret(tool), err))
		}
	}
	return errors.Join(errs...)
}

// Shut deletes the accounts of another cluster in a cluster, and so its tokens.
func Shut(ctx context.Context, c *cli.Cluster, other string) error {
	var errs []error
	for _, tool := range manifests.Tools() {
		err := c.Client.CoreV1().ServiceAccounts(cli.Namespace).Delete(ctx, account(tool, other), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: delete the ServiceAccount %s: %w", c.Name, account(tool, other), err))
		}
	}
	return errors.Join(errs...)
}

// change sets keys of a tool's Secret, and removes those whose value is nil.
func change(ctx context.Context, c *cli.Cluster, tool string, data map[string][]byte) error {
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Secrets(cli.Namespace).Patch(ctx, secret(tool), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manifests.Manager})
	return err
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
