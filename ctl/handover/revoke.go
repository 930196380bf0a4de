package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

const (
	// tokenCacheTTL is how long a kube-apiserver accepts a token without checking it again:
	// TokenSuccessCacheTTL, which no flag changes (k8s.io/kubernetes 1.36,
	// pkg/kubeapiserver/options/authentication.go, NewBuiltInAuthenticationOptions).
	tokenCacheTTL = 10 * time.Second
	// watchDelay bounds the delay until the watches of all API servers of the cluster have
	// received the deletion of an account.
	watchDelay = 10 * time.Second
	// stepTimeout bounds the deletion of an account, and the wait for its tokens to be refused.
	stepTimeout = time.Minute
)

// Pair is a cluster, From, and a cluster that has tokens of it, To.
type Pair struct{ From, To *cli.Cluster }

// revocation is the revocation of all tokens of one account. Tokens contain the UID of their
// account, so all of them end with it, whatever else they are bound to. It
//
//  1. deletes the account,
//  2. waits until no API server accepts its tokens,
//  3. creates the account again.
//
// If the account was created earlier, a stolen token could request one of the new account:
// API servers accept a token for some seconds after its account is deleted. An account that an
// interruption leaves deleted is created by the next run, which waits again.
type revocation struct {
	in *cli.Cluster
	// account is the ServiceAccount; without a UID it is deleted already.
	account *corev1.ServiceAccount
	token   string // the last one that was handed over; empty: unknown
}

// Revoke revokes all tokens of the pairs. Nothing is changed unless all accounts can be read.
// They wait at the same time.
func Revoke(ctx context.Context, s *cli.Session, pairs []Pair) error {
	all, err := read(ctx, pairs, true)
	if err != nil {
		return cli.Hint(err, "no token was revoked")
	}
	err = revoke(ctx, s, all)
	if len(all) > 0 {
		s.Warn("watches that were opened with these tokens continue until the timeout that their clients requested: if a token was stolen, restart the API servers")
	}
	return err
}

// Restore creates the accounts of the pairs that an interrupted revocation has left deleted.
func Restore(ctx context.Context, s *cli.Session, pairs []Pair) error {
	deleted, err := read(ctx, pairs, false)
	if err != nil {
		return err
	}
	for _, r := range deleted {
		s.Say("%s: the account %s is missing: continuing the revocation of its tokens", r.in.Name, r.account.Name)
	}
	return revoke(ctx, s, deleted)
}

// read reads the accounts of the pairs: all of them to revoke, else those that are deleted.
func read(ctx context.Context, pairs []Pair, toRevoke bool) ([]*revocation, error) {
	var all []*revocation
	var errs []error
	for _, p := range pairs {
		for _, tool := range manifests.Tools() {
			r, err := readAccount(ctx, p, tool, toRevoke)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", p.From.Name, err))
			} else if r != nil {
				all = append(all, r)
			}
		}
	}
	return all, errors.Join(errs...)
}

// readAccount reads an account and its Secret; nil: there is nothing to do with it.
func readAccount(ctx context.Context, p Pair, tool string, toRevoke bool) (*revocation, error) {
	name := account(tool, p.To.Name)
	r := &revocation{in: p.From}
	anchor, err := p.From.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("read the Secret %s: %w", name, err)
	default:
		if err := check(anchor, true); err != nil && toRevoke {
			return nil, fmt.Errorf("the Secret %s: %w", name, err)
		}
		r.account = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cli.Namespace, Labels: anchor.Labels, Annotations: manifests.OwnerOf(anchor)}}
	}
	found, err := p.From.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && !toRevoke:
		return nil, nil
	case err == nil:
		r.account = found
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read the ServiceAccount %s: %w", name, err)
	case r.account == nil:
		return nil, nil
	}
	if r.token, err = last(ctx, p.To, p.From.Name, tool, r.account); err != nil {
		return nil, err
	}
	return r, nil
}

// last returns the token that a cluster has, if it is of the account. No other token may be
// sent to the API server.
func last(ctx context.Context, to *cli.Cluster, from, tool string, account *corev1.ServiceAccount) (string, error) {
	have, err := to.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, secret(tool), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the Secret %s of %s: %w", secret(tool), to.Name, err)
	}
	token := strings.TrimSpace(string(have.Data[from+".token"]))
	claims, err := tokens.Parse(token)
	if err != nil || claims.Account != account.Name || account.UID != "" && claims.AccountUID != account.UID {
		return "", nil
	}
	return token, nil
}

// revoke replaces all accounts at the same time. Each is on its own: a cluster that refuses, or
// is slow, must not leave the accounts of another one deleted.
func revoke(ctx context.Context, s *cli.Session, all []*revocation) error {
	if len(all) == 0 {
		return nil
	}
	s.Say("waiting %s until API servers refuse tokens of deleted accounts", tokenCacheTTL+watchDelay)
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, r := range all {
		group.Go(func() {
			if err := r.replace(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", r.in.Name, err)
			}
		})
	}
	group.Wait()
	for i, r := range all {
		if errs[i] == nil {
			s.Done("%s: tokens of %s are revoked", r.in.Name, r.account.Name)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return cli.Hint(err, "these accounts get no tokens until the revocation is complete: run the command again to continue")
	}
	return nil
}

// replace deletes the account, waits, and creates it.
func (r *revocation) replace(ctx context.Context) error {
	if r.account.UID != "" {
		if err := r.remove(ctx); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(tokenCacheTTL + watchDelay):
	}
	if err := r.refused(ctx); err != nil {
		return err
	}
	_, err := r.in.Client.CoreV1().ServiceAccounts(cli.Namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Name: r.account.Name, Namespace: cli.Namespace, Labels: r.account.Labels, Annotations: r.account.Annotations,
		},
		ImagePullSecrets:             r.account.ImagePullSecrets,
		AutomountServiceAccountToken: r.account.AutomountServiceAccountToken,
	}, metav1.CreateOptions{FieldManager: manifests.Manager})
	if apierrors.IsAlreadyExists(err) {
		return r.restored()
	}
	if err != nil {
		return fmt.Errorf("create the ServiceAccount %s: %w", r.account.Name, err)
	}
	return nil
}

// restored is the error if another client has created the account during the wait: a stolen
// token may have requested one of the new account.
func (r *revocation) restored() error {
	return fmt.Errorf("the ServiceAccount %s was restored meanwhile: suspend the program that applies it, and revoke again", r.account.Name)
}

// remove deletes the account, and waits until it is gone.
func (r *revocation) remove(ctx context.Context) error {
	accounts := r.in.Client.CoreV1().ServiceAccounts(cli.Namespace)
	err := accounts.Delete(ctx, r.account.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.account.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the ServiceAccount %s: %w", r.account.Name, err)
	}
	return poll(ctx, stepTimeout, func(ctx context.Context) error {
		still, err := accounts.Get(ctx, r.account.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("read the ServiceAccount %s: %w", r.account.Name, err)
		case still.UID != r.account.UID:
			return r.restored()
		}
		return fmt.Errorf("the ServiceAccount %s is being deleted and waits for its finalizers: %s", r.account.Name, strings.Join(still.Finalizers, ", "))
	})
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
			return fmt.Errorf("check whether tokens of %s are refused: %w", r.account.Name, err)
		case accepted:
			return fmt.Errorf("the API server still accepts tokens of %s, which was deleted", r.account.Name)
		}
		return nil
	})
}

// poll is cli.Poll until a limit.
func poll(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := cli.Poll(limited, ask)
	if err != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return err
}
