package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// revoking is the annotation of an account's RoleBinding while its tokens are revoked.
//
// A revocation
//
//  1. withdraws the account's right to request tokens, by removing it from the RoleBinding,
//  2. deletes the Secret that its tokens are bound to, and the account, which may have
//     tokens that are bound to nothing,
//  3. waits until no API server accepts these tokens,
//  4. creates the account and the Secret again, and restores the right.
//
// In any other order a stolen token could request one that is bound to the new Secret: API
// servers accept a token for some seconds after its Secret is deleted.
//
// After an interruption the account has no right, and the next run starts from the
// beginning, including the wait.
const revoking = "semaphore.uw.io/revoking"

const (
	// tokenCacheTTL is how long a kube-apiserver accepts a token without checking it again:
	// TokenSuccessCacheTTL, which no flag changes (k8s.io/kubernetes 1.36,
	// pkg/kubeapiserver/options/authentication.go, NewBuiltInAuthenticationOptions).
	tokenCacheTTL = 10 * time.Second
	// watchDelay bounds the delay until the watches of all API servers of the cluster have
	// received a change of the RoleBinding or the Secret.
	watchDelay = 10 * time.Second
	// stepTimeout bounds the deletion of a Secret, and the wait for its tokens to be refused.
	stepTimeout = time.Minute
	// undoTimeout bounds the undo of a revocation, which an interruption doesn't end.
	undoTimeout = 20 * time.Second
)

// mark is the value of the annotation, as JSON.
type mark struct {
	Begun time.Time `json:"begun"` // for people
	// Labels and Annotations are those of the deleted Secret, for the new one.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Account is the new ServiceAccount; nil: none is created.
	Account *corev1.ServiceAccount `json:"account,omitempty"`
}

// Pair is a cluster, From, and a cluster that has tokens of it, To.
type Pair struct{ From, To *cli.Cluster }

// revocation is the revocation of all tokens of one account.
type revocation struct {
	in   *cli.Cluster
	name string // of the account, its Secret and its RoleBinding
	// before is the Secret to delete, and account the ServiceAccount; nil: already deleted.
	before  *corev1.Secret
	account *corev1.ServiceAccount
	token   string // the last one that was handed over; empty: unknown
	mark    mark
	// begun is whether an earlier run has begun, bound whether the account has a RoleBinding.
	begun, bound bool
}

// Revoke revokes all tokens of the pairs. Nothing is changed unless all of them can be
// revoked. They wait at the same time.
func Revoke(ctx context.Context, s *cli.Session, pairs []Pair) error {
	var all []*revocation
	var errs []error
	for _, p := range pairs {
		for _, tool := range manifests.Tools() {
			r, err := planned(ctx, p, tool)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.From.Name, err))
			}
			if r != nil {
				all = append(all, r)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Hint(err, "no token was revoked")
	}
	return revoke(ctx, s, all)
}

// Finish completes interrupted revocations of clusters.
func Finish(ctx context.Context, s *cli.Session, clusters []*cli.Cluster) error {
	var all []*revocation
	for _, c := range clusters {
		var names []string
		if err := cli.List(ctx, c.Client.RbacV1().RoleBindings(cli.Namespace), metav1.ListOptions{}, func(b *rbacv1.RoleBinding) error {
			if _, is := b.Annotations[revoking]; is && slices.ContainsFunc(manifests.Tools(), func(tool string) bool {
				return strings.HasPrefix(b.Name, account(tool, ""))
			}) {
				names = append(names, b.Name)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("%s: list RoleBindings in %s, to see whether a revocation was interrupted: %w", c.Name, cli.Namespace, err)
		}
		for _, name := range names {
			r, err := read(ctx, c, name)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			if !r.begun {
				continue // The RoleBinding is for another role.
			}
			for _, to := range clusters {
				for _, tool := range manifests.Tools() {
					if r.name == account(tool, to.Name) {
						if r.token, err = last(ctx, to, c.Name, tool, r); err != nil {
							return fmt.Errorf("%s: %w", to.Name, err)
						}
					}
				}
			}
			s.Say("%s: continuing the interrupted revocation of tokens of %s", c.Name, r.name)
			all = append(all, r)
		}
	}
	return revoke(ctx, s, all)
}

// planned reads an account; nil: it doesn't exist and has no tokens.
func planned(ctx context.Context, p Pair, tool string) (*revocation, error) {
	r, err := read(ctx, p.From, account(tool, p.To.Name))
	switch {
	case err != nil || r.before == nil && r.account == nil && !r.begun:
		return nil, err
	case r.before == nil && !r.begun:
		return nil, fmt.Errorf("the Secret of account %s is missing, to which its tokens are bound: run semaphorectl join, then revoke", r.name)
	}
	r.token, err = last(ctx, p.To, p.From.Name, tool, r)
	return r, err
}

// read reads the Secret, the ServiceAccount and the RoleBinding of an account.
func read(ctx context.Context, c *cli.Cluster, name string) (*revocation, error) {
	r := &revocation{in: c, name: name, mark: mark{Begun: time.Now().UTC().Truncate(time.Second)}}
	secret, err := c.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		if err := check(secret, true); err != nil {
			return nil, fmt.Errorf("the Secret %s: %w", name, err)
		}
		r.before, r.mark.Labels, r.mark.Annotations = secret, secret.Labels, secret.Annotations
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read the Secret %s: %w", name, err)
	}
	account, err := c.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		r.account, r.mark.Account = account, successor(account)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read the ServiceAccount %s: %w", name, err)
	}
	binding, err := r.binding(ctx)
	if err != nil || binding == nil || binding.RoleRef != r.role() {
		return r, err // Rights by other bindings are checked by denied.
	}
	text, begun := binding.Annotations[revoking]
	if begun {
		r.begun = true
		written := mark{Labels: binding.Labels, Account: &corev1.ServiceAccount{}}
		_ = json.Unmarshal([]byte(text), &written) // The defaults are the labels of the RoleBinding.
		if r.mark = written; r.mark.Account == nil {
			r.mark.Account = &corev1.ServiceAccount{}
		}
		// The annotation must not choose another account.
		r.mark.Account.Name, r.mark.Account.Namespace = name, cli.Namespace
		r.mark.Account = successor(r.mark.Account)
	}
	r.bound = begun || slices.Contains(binding.Subjects, r.subject())
	return r, nil
}

// successor returns the account that replaces a.
func successor(a *corev1.ServiceAccount) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace, Labels: a.Labels, Annotations: a.Annotations},
		ImagePullSecrets:             a.ImagePullSecrets,
		AutomountServiceAccountToken: a.AutomountServiceAccountToken,
	}
}

// last returns the token that a cluster has, if it is of the account to revoke. No other
// token may be sent to the API server.
func last(ctx context.Context, to *cli.Cluster, from, tool string, r *revocation) (string, error) {
	have, err := to.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, secret(tool), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the Secret %s of %s: %w", secret(tool), to.Name, err)
	}
	token := strings.TrimSpace(string(have.Data[from+".token"]))
	claims, err := tokens.Parse(token)
	if err != nil || claims.Secret.Name != r.name || r.before != nil && claims.Secret.UID != r.before.UID {
		return "", nil
	}
	return token, nil
}

func (r *revocation) subject() rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: r.name, Namespace: cli.Namespace}
}

func (r *revocation) role() rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.name}
}

// binding returns the account's RoleBinding, or nil.
func (r *revocation) binding(ctx context.Context) (*rbacv1.RoleBinding, error) {
	binding, err := r.in.Client.RbacV1().RoleBindings(cli.Namespace).Get(ctx, r.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the RoleBinding %s: %w", r.name, err)
	}
	return binding, nil
}

// change updates the account's RoleBinding, and retries on conflicts.
func (r *revocation) change(ctx context.Context, to func(*rbacv1.RoleBinding)) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		binding, err := r.in.Client.RbacV1().RoleBindings(cli.Namespace).Get(ctx, r.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		to(binding)
		_, err = r.in.Client.RbacV1().RoleBindings(cli.Namespace).Update(ctx, binding, metav1.UpdateOptions{FieldManager: manifests.Manager})
		return err
	})
	if err != nil {
		return fmt.Errorf("change the RoleBinding %s: %w", r.name, err)
	}
	return nil
}

// revoke revokes the tokens of all accounts at the same time.
func revoke(ctx context.Context, s *cli.Session, all []*revocation) error {
	if len(all) == 0 {
		return nil
	}
	err := each(all, func(r *revocation) error { return r.withdraw(ctx) })
	if err == nil {
		err = each(all, func(r *revocation) error { return r.denied(ctx) })
	}
	if err != nil { // This run has deleted nothing yet.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return errors.Join(err, each(all, func(r *revocation) error {
			if r.begun {
				return nil
			}
			return r.restore(undo)
		}), errors.New("no token was revoked"))
	}
	s.Say("waiting %s until API servers refuse tokens of deleted accounts", tokenCacheTTL+watchDelay)
	// Each on its own: a cluster that refuses, or is slow, must not leave the accounts of
	// another one without rights.
	all, err = succeeded(all, func(r *revocation) error {
		if err := r.remove(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(tokenCacheTTL + watchDelay):
		}
		if err := r.refused(ctx); err != nil {
			return err
		}
		return r.renew(ctx)
	})
	for _, r := range all {
		s.Done("%s: tokens of %s are revoked", r.in.Name, r.name)
	}
	if err != nil {
		return cli.Hint(err, unfinished)
	}
	s.Warn("watches that were opened with these tokens continue until the timeout that their clients requested: if a token was stolen, restart the API servers")
	return nil
}

const unfinished = "these accounts get no tokens until the revocation is complete: run the command again to continue"

// each calls do for all accounts at the same time.
func each(all []*revocation, do func(*revocation) error) error {
	_, err := succeeded(all, do)
	return err
}

// succeeded is each, and returns the accounts without an error.
func succeeded(all []*revocation, do func(*revocation) error) ([]*revocation, error) {
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() {
			if err := do(r); err != nil {
				errs[i] = fmt.Errorf("%s: %w", r.in.Name, err)
			}
		})
	}
	group.Wait()
	var done []*revocation
	for i, r := range all {
		if errs[i] == nil {
			done = append(done, r)
		}
	}
	return done, errors.Join(errs...)
}

// poll calls ask until it succeeds, and returns its last error at the limit.
func poll(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	var state error
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		if err := ask(ctx); ctx.Err() == nil {
			state = err
		}
		return state == nil && ctx.Err() == nil, nil
	})
	return cmp.Or(errors.Join(state, context.Cause(ctx)), err)
}
