// Package handover gives a cluster the tokens with which it reads another one. What an
// API server answers must have the form of tokens and certificates, or nothing is
// written; no value of them is in an error.
package handover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// Mode says which tokens are handed over.
type Mode int

const (
	// Missing are those that aren't there, or aren't good.
	Missing Mode = iota
	// All hands over a new token in any case.
	All
)

const (
	// lifetime is the longest that deploy/remote lets an account renew a token for.
	lifetime = 30 * 24 * time.Hour
	// least is how long a token must still be good for not to be replaced.
	least = 24 * time.Hour
)

// handed is what one tool gets.
type handed struct{ tool, token, ca string }

// Hand gives the cluster to what its programs need to read the cluster from, and says
// which tools got something, and which are granted nothing. Nothing is written unless
// all of it is there.
func Hand(ctx context.Context, s *cli.Session, from, to *cli.Cluster, mode Mode) (tools, none []string, err error) {
	var anchors []*corev1.Secret
	var names []string // of the tools, in the order of the anchors
	for _, tool := range manifests.Tools() {
		anchor, err := from.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, account(tool, to.Name), metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, nil, fmt.Errorf("%s: read the Secret %s: %w", from.Name, account(tool, to.Name), err)
		}
		if undone := interrupted(ctx, from, account(tool, to.Name)); undone != nil {
			return nil, nil, fmt.Errorf("%s: %w", from.Name, undone)
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
		return nil, nil, fmt.Errorf("%s: it grants nothing to %s: no Secret %s in %s; semaphorectl join makes them", from.Name, to.Name, account(manifests.WireGuard, to.Name), cli.Namespace)
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
		if err := store(ctx, s, to, from.Name, h); err != nil {
			return tools, none, fmt.Errorf("%s: write the Secret %s: %w", to.Name, secret(h.tool), err)
		}
		tools = append(tools, h.tool)
	}
	return tools, none, nil
}

func account(tool, to string) string { return "semaphore-" + manifests.Account(tool) + "-remote-" + to }
func secret(tool string) string      { return "semaphore-" + manifests.Account(tool) + "-remotes" }

// interrupted is an error while a revocation of an account's tokens isn't done.
func interrupted(ctx context.Context, from *cli.Cluster, name string) error {
	binding, err := from.Client.RbacV1().RoleBindings(cli.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil // Nothing is made here that could undo a revocation.
	}
	if _, is := binding.Annotations[revoking]; is {
		return fmt.Errorf("the revocation of tokens of %s was interrupted: semaphorectl tokens --revoke goes on with it", name)
	}
	return nil
}

// check says whether a Secret is one that tokens can be bound to, or holds one that
// never expires, which can't be revoked.
func check(anchor *corev1.Secret, revoked bool) error {
	if anchor.Type == corev1.SecretTypeServiceAccountToken {
		if revoked {
			return errors.New("its token never expires: delete the Secret, apply your manifests again, and hand over again")
		}
		_, err := static("", anchor)
		return err
	}
	if anchor.Type != corev1.SecretTypeOpaque || len(anchor.Data) > 0 {
		return errors.New("it isn't one that deploy/remote makes; nothing is handed over")
	}
	return nil
}

// value is what a tool is to get, nil when it has all of it.
func value(ctx context.Context, from, to *cli.Cluster, tool string, anchor *corev1.Secret, ca string, mode Mode) (*handed, error) {
	if anchor.Type == corev1.SecretTypeServiceAccountToken {
		return static(tool, anchor)
	}
	if mode == Missing {
		if good, err := has(ctx, to, from.Name, tool, anchor, ca); err != nil || good {
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
		return nil, fmt.Errorf("get a token of the account: %w", err)
	}
	claims, err := tokens.Parse(request.Status.Token)
	if err != nil {
		return nil, fmt.Errorf("what was issued is no token: %w; nothing is handed over", err)
	}
	if claims.Account != anchor.Name || claims.Secret.Name != anchor.Name {
		return nil, errors.New("what was issued is the token of another account, or bound to something else; nothing is handed over")
	}
	return &handed{tool, request.Status.Token, ca}, nil
}

// static takes a token that never expires, as Kubernetes has written it.
func static(tool string, anchor *corev1.Secret) (*handed, error) {
	token := strings.TrimSpace(string(anchor.Data["token"]))
	if token == "" {
		return nil, errors.New("it has no token yet")
	}
	if _, err := tokens.Parse(token); err != nil {
		return nil, fmt.Errorf("what it has as token is none: %w; nothing is handed over", err)
	}
	ca, err := facts.Certificates(anchor.Data["ca.crt"])
	if err != nil {
		return nil, fmt.Errorf("its ca.crt: %w; nothing is handed over", err)
	}
	return &handed{tool, token, ca}, nil
}

// has says whether a cluster has a token that will be good for a while, and the
// authorities.
func has(ctx context.Context, to *cli.Cluster, from, tool string, anchor *corev1.Secret, ca string) (bool, error) {
	have, err := to.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, secret(tool), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	claims, err := tokens.Parse(strings.TrimSpace(string(have.Data[from+".token"])))
	if err != nil || string(have.Data[from+".ca.crt"]) != ca {
		return false, nil
	}
	return claims.Secret.UID == anchor.UID && time.Until(claims.Expires) > least, nil
}

// authority is the authority of a cluster, which Kubernetes puts into each namespace.
func authority(ctx context.Context, c *cli.Cluster) (string, error) {
	text := c.Config.CAData // Where no controller has put it anywhere yet.
	for _, namespace := range []string{"kube-system", cli.Namespace} {
		found, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("read the ConfigMap kube-root-ca.crt: %w", err)
		}
		if err == nil {
			text = []byte(found.Data["ca.crt"])
		}
	}
	ca, err := facts.Certificates(text)
	if err != nil {
		return "", fmt.Errorf("the cluster's authorities: %w; nothing is handed over", err)
	}
	return ca, nil
}
