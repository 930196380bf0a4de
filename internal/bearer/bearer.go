// Package bearer lets only those read a page who show a token that the local API
// server knows, and whose account may read it, as kube-rbac-proxy does.
package bearer

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

// verdict is what the API server says about a token and a path.
type verdict int

const (
	unknown   verdict = iota // it doesn't know the token
	forbidden                // the token's account may not get the path
	allowed
)

// errBusy is for reviews that aren't made, because there are too many.
var errBusy = errors.New("too many tokens to review")

// Guard stands before a handler. It needs the rights to create TokenReviews and
// SubjectAccessReviews.
type Guard struct {
	client   kube.Client
	outcomes *errlog.Log // of reviews
	cache    *cache
	known    lane // reviews of tokens that were allowed before
	others   lane
}

// New returns a guard that asks the API server of client.
func New(client kube.Client, log *slog.Logger) *Guard {
	outcomes := &errlog.Log{
		Logger: log, Level: slog.LevelWarn,
		Failing: "tokens can't be reviewed, nobody gets metrics and status", Over: "tokens can be reviewed again",
	}
	return &Guard{client: client, outcomes: outcomes, cache: newCache(), known: newLane(), others: newLane()}
}

// Wrap returns a handler that lets requests through to next whose bearer token
// the API server authenticates, and whose account it lets get the request's path,
// as a nonResourceURL. It answers others with 401 and 403, and with 503 when the
// API server can't be asked, or is asked too much.
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
			// What went wrong is none of a stranger's business.
			w.Header().Set("Retry-After", "1")
			http.Error(w, "the token can't be reviewed now", http.StatusServiceUnavailable)
		case v == unknown:
			w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			http.Error(w, "the token is not known", http.StatusUnauthorized)
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

// verdict returns what was said not long ago, or else asks.
func (g *Guard) verdict(ctx context.Context, token, path string) (verdict, error) {
	key := keyOf(token, path)
	v, fresh, before := g.cache.get(key, time.Now())
	if fresh {
		return v, nil
	}
	// A flood of tokens that nobody knows must not keep out those who are known.
	lane := g.others
	if before && v == allowed {
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
		g.cache.put(key, v, time.Now())
	}
	g.outcomes.Note(ctx, err) // Unless the client is gone. The API server's answers don't quote tokens.
	return v, err
}

// review asks the API server whose the token is, and what its account may do.
func (g *Guard) review(ctx context.Context, token, path string) (verdict, error) {
	who, err := g.client.TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return unknown, fmt.Errorf("review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return unknown, nil
	}
	user := who.Status.User
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
