// Package authz authenticates and authorizes HTTP requests by bearer token, with
// TokenReview and SubjectAccessReview of the local API server, as kube-rbac-proxy does.
package authz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// reviewTimeout bounds both reviews of one token.
const reviewTimeout = 5 * time.Second

// verdict is the result of both reviews of a token and a path.
type verdict int

const (
	unknown   verdict = iota // the token is not authenticated
	forbidden                // the token's account may not get the path
	allowed
)

// errBusy is returned when a lane is full.
var errBusy = errors.New("too many tokens to review")

// Guard authorizes the requests to a handler. Its client must be allowed to create
// TokenReviews and SubjectAccessReviews.
type Guard struct {
	client   kube.Client
	outcomes *errlog.Log // of reviews
	verdicts verdicts
	known    lane // reviews of tokens that were allowed before
	others   lane
}

// New returns a guard that creates reviews with client.
func New(client kube.Client, log *slog.Logger) *Guard {
	outcomes := &errlog.Log{
		Logger: log, Level: slog.LevelWarn,
		Failing: "tokens can't be reviewed, requests for metrics and status are refused", Over: "tokens can be reviewed again",
	}
	return &Guard{client: client, outcomes: outcomes, verdicts: newVerdicts(), known: newLane(), others: newLane()}
}

// Wrap returns a handler that passes a request on to next if the API server
// authenticates its bearer token, and allows the token's account to get the request's
// path as a nonResourceURL. Otherwise it responds with 401 or 403, and with 503 if the
// review fails or too many reviews are under way.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := tokenOf(r)
		if !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		v, err := g.verdict(r.Context(), token, r.URL.Path)
		switch {
		case err != nil:
			// The client is not authenticated: it doesn't get the error.
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the token can't be reviewed now", http.StatusServiceUnavailable)
		case v == unknown:
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			http.Error(w, "the token is not valid", http.StatusUnauthorized)
		case v == forbidden:
			http.Error(w, "the account may not get this path", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// tokenOf returns the bearer token of a request (RFC 6750, 2.1).
func tokenOf(r *http.Request) (string, bool) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// verdict returns the cached verdict while it is fresh, and else reviews the token.
func (g *Guard) verdict(ctx context.Context, token, path string) (verdict, error) {
	key := keyOf(token, path)
	v, fresh, known := g.verdicts.get(key)
	if fresh {
		return v, nil
	}
	// A flood of invalid tokens must not block reviews of tokens that were allowed before.
	lane := g.others
	if known {
		lane = g.known
	}
	leave, ok := lane.enter()
	if !ok {
		return unknown, errBusy
	}
	defer leave()
	bounded, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	v, err := g.review(bounded, token, path)
	if err == nil {
		g.verdicts.put(key, v)
	}
	g.outcomes.Note(ctx, err) // Not if the client is gone. Errors of the API server don't quote tokens.
	return v, err
}

// review makes both reviews, without the cache.
func (g *Guard) review(ctx context.Context, token, path string) (verdict, error) {
	authenticated, err := g.client.TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return unknown, fmt.Errorf("review a token: %w", err)
	}
	if !authenticated.Status.Authenticated {
		return unknown, nil
	}
	user := authenticated.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := g.client.SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		}}, metav1.CreateOptions{})
	if err != nil {
		return unknown, fmt.Errorf("review the access of an account: %w", err)
	}
	if !may.Status.Allowed {
		return forbidden, nil
	}
	return allowed, nil
}
