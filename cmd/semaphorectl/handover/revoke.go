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

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// revoking is the annotation of an account's RoleBinding while its tokens are revoked.
//
// A revocation takes the right to ask for tokens from an account, deletes the Secret that
// its tokens are bound to and the account itself, of which there may be tokens that are
// bound to nothing, waits until no API server accepts them any longer, makes another account
// of that name and another Secret, and gives the right back. In any other order a token that was stolen gets one that
// is bound to the new Secret: API servers accept a token for some seconds after its Secret
// is gone.
//
// The right is taken by taking the subject out of the RoleBinding. A run that ends in the
// middle leaves it so: the account has no right, and the next run begins again, with all of
// the wait.
const revoking = "semaphore.uw.io/revoking"

const (
	// remembered is how long a kube-apiserver accepts a token without looking at it again:
	// TokenSuccessCacheTTL, which no flag changes (k8s.io/kubernetes 1.36,
	// pkg/kubeapiserver/options/authentication.go, NewBuiltInAuthenticationOptions).
	remembered = 10 * time.Second
	// late is how much later than the one that was written to any other API server of the
	// cluster may have read from its watches that right and Secret are gone.
	late = 10 * time.Second
	// patience is how long a Secret may take to be gone, and the API server that is asked to
	// refuse its tokens.
	patience = time.Minute
	// undoing is how long an undoing may take that goes on after an interruption.
	undoing = 20 * time.Second
)

// mark is the value of the annotation, as JSON.
type mark struct {
	Begun time.Time `json:"begun"` // for people
	// Labels and Annotations are those that the next Secret has from the one before.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Account is the next ServiceAccount; nil: it is made by nobody here.
	Account *corev1.ServiceAccount `json:"account,omitempty"`
}

// Pair is a cluster whose tokens another one has.
type Pair struct{ From, To *cli.Cluster }

// revocation is that of all tokens of one account.
type revocation struct {
	in   *cli.Cluster
	name string // of the account, its Secret and its RoleBinding
	// before is the Secret that is to go, and account the ServiceAccount; nil: it has gone
	// already.
	before  *corev1.Secret
	account *corev1.ServiceAccount
	token   string // the last one that was handed over; empty: it isn't known
	mark    mark
	// begun is whether an earlier run has, held whether the account has a RoleBinding.
	begun, held bool
}

// Revoke takes back all tokens that clusters were handed over before. Nothing is changed
// unless all of it can be; all of it waits once.
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

// Finish completes the revocations that earlier runs have begun in clusters.
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
				continue // It grants something else.
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
			s.Say("%s: the revocation of tokens of %s was interrupted, and goes on", c.Name, r.name)
			all = append(all, r)
		}
	}
	return revoke(ctx, s, all)
}

// planned looks at an account; nil: there is none, and nothing to be revoked.
func planned(ctx context.Context, p Pair, tool string) (*revocation, error) {
	r, err := read(ctx, p.From, account(tool, p.To.Name))
	switch {
	case err != nil || r.before == nil && r.account == nil && !r.begun:
		return nil, err
	case r.before == nil && !r.begun:
		return nil, fmt.Errorf("the account %s has no Secret that its tokens are bound to: join again, then revoke", r.name)
	}
	r.token, err = last(ctx, p.To, p.From.Name, tool, r)
	return r, err
}

// read looks at the Secret and the RoleBinding of an account.
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
		return r, err // The account may do nothing by it, or something else, which is asked for.
	}
	text, begun := binding.Annotations[revoking]
	if begun {
		r.begun = true
		written := mark{Labels: binding.Labels, Account: &corev1.ServiceAccount{}}
		_ = json.Unmarshal([]byte(text), &written) // What can't be read is made as the RoleBinding is.
		if r.mark = written; r.mark.Account == nil {
			r.mark.Account = &corev1.ServiceAccount{}
		}
		// Of what is written there only this account is made.
		r.mark.Account.Name, r.mark.Account.Namespace = name, cli.Namespace
		r.mark.Account = successor(r.mark.Account)
	}
	r.held = begun || slices.Contains(binding.Subjects, r.subject())
	return r, nil
}

// successor is the account that comes in the place of one.
func successor(a *corev1.ServiceAccount) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Name: a.Name, Namespace: a.Namespace, Labels: a.Labels, Annotations: a.Annotations},
		ImagePullSecrets:             a.ImagePullSecrets,
		AutomountServiceAccountToken: a.AutomountServiceAccountToken,
	}
}

// last is the token that a cluster has, if it is one that is to be revoked. Nothing else
// is shown to the API server.
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

// binding is the account's; nil: there is none.
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

// change writes the account's RoleBinding, unless another one has just done so: then it
// begins again with that.
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

// revoke does all of it, for all accounts at once.
func revoke(ctx context.Context, s *cli.Session, all []*revocation) error {
	if len(all) == 0 {
		return nil
	}
	err := each(all, func(r *revocation) error { return r.take(ctx) })
	if err == nil {
		err = each(all, func(r *revocation) error { return r.denied(ctx) })
	}
	if err != nil { // This run has deleted no Secret.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
		defer cancel()
		return errors.Join(err, each(all, func(r *revocation) error {
			if r.begun {
				return nil
			}
			return r.give(undo)
		}), errors.New("no token was revoked"))
	}
	s.Say("waiting %s until API servers no longer accept tokens of accounts that are gone", remembered+late)
	// Each by itself: a cluster that refuses, or is slow, must not leave the accounts of
	// another one taken.
	all, err = those(all, func(r *revocation) error {
		if err := r.remove(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(remembered + late):
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
	s.Warn("watches that were opened with these tokens go on for as long as their clients have asked for: if one was stolen, restart the API servers")
	return nil
}

const unfinished = "these accounts get no tokens until this is done: run the command again to go on"

// each does something for all accounts at once.
func each(all []*revocation, do func(*revocation) error) error {
	_, err := those(all, do)
	return err
}

// those is each, and returns the accounts for which it was done.
func those(all []*revocation, do func(*revocation) error) ([]*revocation, error) {
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

// poll asks until there is no error; the last one is returned when that takes too long.
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
