package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// withdraw withdraws the account's right to request tokens, and annotates the RoleBinding.
func (r *revocation) withdraw(ctx context.Context) error {
	if !r.bound {
		return nil
	}
	text, err := json.Marshal(r.mark)
	if err != nil {
		return err
	}
	return r.change(ctx, func(b *rbacv1.RoleBinding) {
		if b.Annotations == nil {
			b.Annotations = map[string]string{}
		}
		b.Annotations[revoking] = string(text)
		b.Subjects = slices.DeleteFunc(b.Subjects, func(s rbacv1.Subject) bool { return s == r.subject() })
	})
}

// restore restores the right, and removes the annotation.
func (r *revocation) restore(ctx context.Context) error {
	if !r.bound {
		return nil
	}
	return r.change(ctx, func(b *rbacv1.RoleBinding) {
		if _, is := b.Annotations[revoking]; !is {
			return // It wasn't withdrawn.
		}
		delete(b.Annotations, revoking)
		if !slices.Contains(b.Subjects, r.subject()) {
			b.Subjects = append(b.Subjects, r.subject())
		}
	})
}

// denied waits until the account may not request tokens. Bindings other than that of
// deploy/remote may allow it.
func (r *revocation) denied(ctx context.Context) error {
	return poll(ctx, watchDelay, func(ctx context.Context) error {
		review, err := r.in.Client.AuthorizationV1().LocalSubjectAccessReviews(cli.Namespace).Create(ctx, &authorizationv1.LocalSubjectAccessReview{
			ObjectMeta: metav1.ObjectMeta{Namespace: cli.Namespace},
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User:   "system:serviceaccount:" + cli.Namespace + ":" + r.name,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + cli.Namespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: cli.Namespace, Verb: "create", Resource: "serviceaccounts", Subresource: "token", Name: r.name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("check whether the account %s may still request tokens: %w", r.name, err)
		}
		if review.Status.Allowed {
			return fmt.Errorf("the account %s may request tokens without the RoleBinding %s; withdraw that right first: %s",
				r.name, r.name, cmp.Or(review.Status.Reason, "the API server gives no reason"))
		}
		return nil
	})
}

// remove deletes the Secret and the account, and waits until they are gone.
func (r *revocation) remove(ctx context.Context) error {
	secrets, accounts := r.in.Client.CoreV1().Secrets(cli.Namespace), r.in.Client.CoreV1().ServiceAccounts(cli.Namespace)
	var errs []error
	if r.before != nil {
		errs = append(errs, r.gone(ctx, "Secret", r.before.UID, secrets.Delete, func(ctx context.Context) (metav1.Object, error) {
			return secrets.Get(ctx, r.name, metav1.GetOptions{})
		}))
	}
	if r.account != nil {
		errs = append(errs, r.gone(ctx, "ServiceAccount", r.account.UID, accounts.Delete, func(ctx context.Context) (metav1.Object, error) {
			return accounts.Get(ctx, r.name, metav1.GetOptions{})
		}))
	}
	return errors.Join(errs...)
}

// gone deletes an object with the account's name, and waits until it is gone.
func (r *revocation) gone(ctx context.Context, kind string, uid types.UID, remove func(context.Context, string, metav1.DeleteOptions) error,
	get func(context.Context) (metav1.Object, error)) error {
	err := remove(ctx, r.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(uid))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the %s %s: %w", kind, r.name, err)
	}
	return poll(ctx, stepTimeout, func(ctx context.Context) error {
		still, err := get(ctx)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("read the %s %s: %w", kind, r.name, err)
		case still.GetUID() != uid && kind == "ServiceAccount":
			return nil // A new account doesn't accept tokens of the deleted one.
		case still.GetUID() != uid:
			return r.restored(kind)
		}
		return fmt.Errorf("the %s %s is being deleted and waits for its finalizers: %s", kind, r.name, strings.Join(still.GetFinalizers(), ", "))
	})
}

func (r *revocation) restored(what string) error {
	return fmt.Errorf("the %s %s was restored meanwhile: stop the program that applies it", what, r.name)
}

// refused waits until the API server refuses the last token.
func (r *revocation) refused(ctx context.Context) error {
	if r.token == "" {
		return nil
	}
	return poll(ctx, stepTimeout, func(ctx context.Context) error {
		accepted, err := accepts(ctx, r.in, r.token)
		switch {
		case apierrors.IsForbidden(err):
			return nil // The wait alone has to suffice.
		case err != nil:
			return fmt.Errorf("check whether tokens of %s are refused: %w", r.name, err)
		case accepted:
			return fmt.Errorf("the API server still accepts tokens of %s whose Secret was deleted", r.name)
		}
		return nil
	})
}

// renew creates the account and the Secret again, unless the Secret or the RoleBinding was
// restored meanwhile, and restores the right.
func (r *revocation) renew(ctx context.Context) error {
	if r.bound {
		binding, err := r.binding(ctx)
		if err != nil {
			return err
		}
		if binding == nil || binding.Annotations[revoking] == "" || slices.Contains(binding.Subjects, r.subject()) {
			return r.restored("RoleBinding")
		}
	}
	if next := r.mark.Account; next != nil {
		_, err := r.in.Client.CoreV1().ServiceAccounts(cli.Namespace).Create(ctx, next, metav1.CreateOptions{FieldManager: manifests.Manager})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the ServiceAccount %s: %w", r.name, err)
		}
	}
	_, err := r.in.Client.CoreV1().Secrets(cli.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: r.name, Namespace: cli.Namespace, Labels: r.mark.Labels, Annotations: r.mark.Annotations},
		Type:       corev1.SecretTypeOpaque,
	}, metav1.CreateOptions{FieldManager: manifests.Manager})
	if apierrors.IsAlreadyExists(err) {
		return r.restored("Secret")
	}
	if err != nil {
		return fmt.Errorf("create the Secret %s: %w", r.name, err)
	}
	return r.restore(ctx)
}
