package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Secrets returns the names of the Secrets with tokens for remotes, one per program. Their
// keys are <remote>.token and <remote>.ca.crt.
func Secrets() []string {
	return []string{"semaphore-wireguard-remotes", "semaphore-service-mirror-remotes", "semaphore-policy-remotes"}
}

// tolerated is the largest accepted difference between this clock and that of a remote's API
// server, as that of "semaphorectl doctor".
const tolerated = 5 * time.Minute

// Remote is a remote cluster.
type Remote struct {
	Name string
	// Access has the URL of its API server. The CA certificates are from CAURL if that is
	// set, else from the Secret; files are ignored.
	Access config.Access
}

// Renewer renews tokens.
type Renewer struct {
	// Client is for the local cluster, with the Secrets in Namespace.
	Client    kube.Client
	Namespace string
	Remotes   []Remote
	// All renews tokens that aren't due as well.
	All bool
	Now func() time.Time
	// UserAgent names program, version and local cluster.
	UserAgent string
	Logger    *slog.Logger
}

// Run renews the tokens that are due: those that expire, after a third of their lifetime, and
// those from the future. It skips missing tokens and those that never expire. Remotes are
// renewed concurrently. The error joins all failures, with remote and Secret, and names tokens
// from the future; a token that couldn't be renewed stays.
func (r *Renewer) Run(ctx context.Context) error {
	errs := make([]error, len(r.Remotes))
	var group sync.WaitGroup
	for i, remote := range r.Remotes {
		group.Go(func() {
			for _, name := range Secrets() {
				if err := r.renew(ctx, remote, name); err != nil {
					errs[i] = errors.Join(errs[i], fmt.Errorf("%s of %s: %w", name, remote.Name, err))
				}
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// renew renews the token of one remote in one Secret.
func (r *Renewer) renew(ctx context.Context, remote Remote, name string) error {
	secret, err := r.Client.Secrets(r.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // no tokens are installed for this program
	}
	if err != nil {
		return err
	}
	stored, have := secret.Data[remote.Name+".token"]
	if !have {
		return nil
	}
	present := strings.TrimSpace(string(stored))
	claims, err := Parse(present)
	if err != nil {
		return fmt.Errorf("current token: %w", err)
	}
	now := r.Now()
	switch ahead := claims.Issued.Sub(now); {
	case claims.Expires.IsZero(), !r.All && ahead <= tolerated && !claims.due(now):
		return nil
	case ahead > tolerated:
		// Its age is unknown, so that it may expire before it is due.
		return errors.Join(fmt.Errorf("current token was issued at %s, %s after the time of this node: correct its clock, or that of the remote's API server",
			claims.Issued.UTC().Format(time.RFC3339), ahead.Round(time.Minute)), r.exchange(ctx, remote, secret, present, claims))
	case !now.Before(claims.Expires):
		return fmt.Errorf("current token expired at %s: install a new one", claims.Expires.UTC().Format(time.RFC3339))
	}
	return r.exchange(ctx, remote, secret, present, claims)
}

// exchange requests the next token and stores it.
func (r *Renewer) exchange(ctx context.Context, remote Remote, secret *corev1.Secret, present string, claims *Claims) error {
	if claims.Secret.Name == "" {
		return fmt.Errorf("current token is not bound to a Secret and can't be renewed: install a new one before %s",
			claims.Expires.UTC().Format(time.RFC3339))
	}
	issuer := server{
		access: remote.Access, ca: secret.Data[remote.Name+".ca.crt"],
		agent: r.UserAgent, log: r.Logger.With("cluster", remote.Name),
	}
	token, next, err := issuer.next(ctx, present, claims)
	if err != nil {
		return fmt.Errorf("renew the token that expires at %s: %w", claims.Expires.UTC().Format(time.RFC3339), err)
	}
	if err := r.replace(ctx, secret, remote.Name+".token", []byte(token)); err != nil {
		return fmt.Errorf("store the token: %w", err)
	}
	r.Logger.Info("token renewed", "cluster", remote.Name, "secret", secret.Name, "expires", next.Expires.UTC())
	return nil
}

// replace writes one key of a Secret, if it hasn't changed since it was read.
func (r *Renewer) replace(ctx context.Context, read *corev1.Secret, key string, value []byte) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	// A key begins with a DNS label and needs no escape (RFC 6901).
	patch, err := json.Marshal([]operation{
		{"test", "/metadata/uid", read.UID},
		{"test", "/data/" + key, read.Data[key]},
		{"replace", "/data/" + key, value},
	})
	if err != nil {
		return err
	}
	_, err = r.Client.Secrets(r.Namespace).Patch(ctx, read.Name, types.JSONPatchType, patch,
		metav1.PatchOptions{FieldManager: "semaphore-tokens"})
	return err
}
