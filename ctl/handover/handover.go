// Package handover hands over the tokens with which clusters read each other, and revokes
// them. Responses of API servers are validated as tokens and certificates before anything is
// written, and errors contain no token.
package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// Mode selects the tokens to hand over.
type Mode int

const (
	// Missing replaces tokens that are missing, invalid or about to expire.
	Missing Mode = iota
	// All replaces all tokens.
	All
)

const (
	// lifetime is the longest that deploy/remote admits.
	lifetime = 30 * 24 * time.Hour
	// least is the remaining lifetime below which Missing replaces a token.
	least = 24 * time.Hour
)

// handed is the credentials of one tool.
type handed struct{ tool, token, ca string }

// Hand hands over credentials for cluster from to cluster to, for those tools that it has: only
// a thief needs the others. It returns the tools that got new ones, and those without an account in from.
// Nothing is written unless all credentials are valid.
func Hand(ctx context.Context, from, to *cli.Cluster, installed []string, mode Mode) (tools, none []string, err error) {
	var anchors []*corev1.Secret
	var names []string // of the tools, in the order of the anchors
	for _, tool := range manifests.Tools() {
		if !slices.Contains(installed, tool) {
			continue
		}
		anchor, err := from.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, account(tool, to.Name), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, nil, fmt.Errorf("%s: read the Secret %s: %w", from.Name, account(tool, to.Name), err)
		}
		if err != nil {
			none = append(none, tool)
			continue
		}
		if err := check(anchor, false); err != nil {
			return nil, nil, fmt.Errorf("%s: Secret %s: %w", from.Name, anchor.Name, err)
		}
		anchors, names = append(anchors, anchor), append(names, tool)
	}
	if len(anchors) == 0 {
		return nil, nil, fmt.Errorf("%s: it has no accounts for %s: no Secret %s in %s; semaphorectl join creates them", from.Name, to.Name, account(manifests.WireGuard, to.Name), cli.Namespace)
	}
	ca, err := authority(ctx, from)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", from.Name, err)
	}
	var all []handed
	for i, anchor := range anchors {
		h, err := value(ctx, from, to, names[i], anchor, ca, mode)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: Secret %s: %w", from.Name, anchor.Name, err)
		}
		if h != nil {
			all = append(all, *h)
		}
	}
	for _, h := range all {
		if err := store(ctx, to, from.Name, h); err != nil {
			return tools, none, fmt.Errorf("%s: write the Secret %s: %w", to.Name, secret(h.tool), err)
		}
		tools = append(tools, h.tool)
	}
	return tools, none, nil
}

func account(tool, to string) string { return "semaphore-" + manifests.Account(tool) + "-remote-" + to }
func secret(tool string) string      { return "semaphore-" + manifests.Account(tool) + "-remotes" }

// check returns an error unless tokens can be bound to a Secret, or it contains a token that
// never expires, which can't be revoked.
func check(anchor *corev1.Secret, revoked bool) error {
	if anchor.Type == corev1.SecretTypeServiceAccountToken {
		if revoked {
			return errors.New("its token never expires: delete the Secret, apply your manifests, and hand over again")
		}
		_, err := static("", anchor)
		return err
	}
	if anchor.Type != corev1.SecretTypeOpaque || len(anchor.Data) > 0 {
		return errors.New("it isn't as in deploy/remote; nothing was handed over")
	}
	return nil
}

// value returns the credentials for a tool; nil: it has valid ones.
func value(ctx context.Context, from, to *cli.Cluster, tool string, anchor *corev1.Secret, ca string, mode Mode) (*handed, error) {
	if anchor.Type == corev1.SecretTypeServiceAccountToken {
		return static(tool, anchor)
	}
	if mode == Missing {
		if good, err := has(ctx, from, to, tool, anchor, ca); err != nil || good {
			return nil, err
		}
	}
	seconds := int64(lifetime / time.Second)
	request, err := from.Client.CoreV1().ServiceAccounts(cli.Namespace).CreateToken(ctx, anchor.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: anchor.Name},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token of the account: %w", err)
	}
	claims, err := tokens.Parse(request.Status.Token)
	if err != nil {
		return nil, fmt.Errorf("the API server issued an invalid token: %w; nothing was handed over", err)
	}
	if claims.Account != anchor.Name || claims.Secret.Name != anchor.Name {
		return nil, errors.New("the API server issued a token of another account, or one that isn't bound to this Secret; nothing was handed over")
	}
	return &handed{tool, request.Status.Token, ca}, nil
}

// static returns the token that Kubernetes has written into a Secret, which never expires.
func static(tool string, anchor *corev1.Secret) (*handed, error) {
	token := strings.TrimSpace(string(anchor.Data["token"]))
	if token == "" {
		return nil, errors.New("it has no token yet")
	}
	if _, err := tokens.Parse(token); err != nil {
		return nil, fmt.Errorf("its token is invalid: %w; nothing was handed over", err)
	}
	ca, err := inspect.Certificates(anchor.Data["ca.crt"])
	if err != nil {
		return nil, fmt.Errorf("its ca.crt: %w; nothing was handed over", err)
	}
	return &handed{tool, token, ca}, nil
}

// has reports whether a cluster has the CA, and a token that the API server accepts and that is
// valid for a while.
func has(ctx context.Context, from, to *cli.Cluster, tool string, anchor *corev1.Secret, ca string) (bool, error) {
	have, err := to.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, secret(tool), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	token := strings.TrimSpace(string(have.Data[from.Name+".token"]))
	claims, err := tokens.Parse(token)
	if err != nil || string(have.Data[from.Name+".ca.crt"]) != ca {
		return false, nil
	}
	// No other token may be sent to the API server.
	if claims.Account != anchor.Name || claims.Secret.UID != anchor.UID || time.Until(claims.Expires) <= least {
		return false, nil
	}
	account, err := from.Client.CoreV1().ServiceAccounts(cli.Namespace).Get(ctx, anchor.Name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read the account: %w", err)
	}
	if claims.AccountUID != account.UID {
		return false, nil // API servers accept it until their caches expire.
	}
	accepted, err := accepts(ctx, from, token)
	if apierrors.IsForbidden(err) {
		return true, nil // The UIDs alone have to suffice.
	}
	return accepted, err
}

// accepts asks an API server whether it accepts a token.
func accepts(ctx context.Context, c *cli.Cluster, token string) (bool, error) {
	review, err := c.Client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review a token: %w", err)
	}
	return review.Status.Authenticated, nil
}

// authority returns the CA of a cluster, which Kubernetes publishes in each namespace, and that of
// the server in the kubeconfig if that is another one.
func authority(ctx context.Context, c *cli.Cluster) (string, error) {
	text := c.Config.CAData // If no controller has published it yet.
	for _, namespace := range []string{"kube-system", cli.Namespace} {
		found, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("read the ConfigMap kube-root-ca.crt: %w", err)
		}
		if err == nil {
			text = []byte(found.Data["ca.crt"])
		}
	}
	ca, err := inspect.Certificates(text)
	if err != nil {
		return "", fmt.Errorf("the cluster's CA: %w; nothing was handed over", err)
	}
	ca, _ = inspect.WithServersAuthority(ctx, c, ca)
	return ca, nil
}
