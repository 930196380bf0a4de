package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

const (
	// requestTimeout bounds a request, including the response.
	requestTimeout = 30 * time.Second
	// maxAnswer is the maximum size of a response, and maxMessage that of a quoted message,
	// in bytes.
	maxAnswer, maxMessage = 64 << 10, 200
	// minLifetime is the minimum of API servers, maxLifetime the maximum of the admission
	// policy in deploy/remote.
	minLifetime, maxLifetime = 10 * time.Minute, 30 * 24 * time.Hour
)

// server is the API server of a remote.
type server struct {
	access config.Access
	ca     []byte // CA certificates in PEM, unless access.CAURL is set
	agent  string // the requests' User-Agent
	log    *slog.Logger
}

// next requests a token that replaces the current one, with the same lifetime, and checks
// its claims.
func (s *server) next(ctx context.Context, present string, of *Claims) (token string, claims *Claims, err error) {
	if token, err = s.request(ctx, present, of); err != nil {
		return "", nil, err
	}
	claims, err = Parse(token)
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("invalid token in the response: %w", err)
	case claims.Namespace != of.Namespace || claims.Account != of.Account:
		return "", nil, errors.New("token in the response is of another account")
	case claims.Secret != of.Secret:
		return "", nil, errors.New("token in the response is bound to another object")
	case !claims.Expires.After(of.Expires):
		return "", nil, fmt.Errorf("token in the response expires no later than the current one, at %s", claims.Expires.UTC().Format(time.RFC3339))
	}
	return token, claims, nil
}

// request makes a TokenRequest, without redirects and compression.
func (s *server) request(ctx context.Context, present string, of *Claims) (string, error) {
	seconds := int64(min(max(of.lifetime(), minLifetime), maxLifetime) / time.Second)
	body, err := json.Marshal(&authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{
				APIVersion: "v1", Kind: "Secret", Name: of.Secret.Name, UID: of.Secret.UID,
			},
		},
	})
	if err != nil {
		return "", err
	}
	client, err := s.client(present)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// Errors have the same information.
	ctx = klog.NewContext(ctx, run.ClientLog(s.log))
	requests := client.REST()
	if made, ok := requests.(*rest.RESTClient); ok {
		defer utilnet.CloseIdleConnectionsFor(made.Client.Transport)
	}
	// Errors of client-go and its decoders may quote the response.
	content, err := requests.Post().MaxRetries(0).
		Namespace(of.Namespace).Resource("serviceaccounts").Name(of.Account).SubResource("token").
		SetHeader("Accept", "application/json").SetHeader("Content-Type", "application/json").
		Body(body).Do(ctx).Raw()
	var status apierrors.APIStatus
	switch {
	case errors.As(err, &status):
		return "", fmt.Errorf("response code %d%s", status.Status().Code, quote(content, present))
	case err != nil:
		return "", err
	}
	var answer authenticationv1.TokenRequest
	if err := json.Unmarshal(content, &answer); err != nil {
		return "", errors.New("response is not a TokenRequest")
	}
	return answer.Status.Token, nil
}

// client returns a client that trusts only the remote's CA.
func (s *server) client(token string) (kube.Client, error) {
	given := kube.ClientConfig{
		Access: s.access, Token: token, UserAgent: s.agent, Bounds: kube.Bounds{Answer: maxAnswer}, Logger: s.log,
	}
	given.Access.TokenFile, given.Access.CAFile = "", ""
	if given.Access.CAURL == "" {
		given.CA = s.ca
	}
	cfg, err := kube.RESTConfig(given)
	if err != nil {
		return nil, err
	}
	return kube.NewClient(cfg)
}

// quote returns the sanitized message of an error response, or an empty string.
func quote(content []byte, secret string) string {
	var status metav1.Status
	if json.Unmarshal(content, &status) != nil || status.Message == "" || strings.Contains(status.Message, secret) {
		return ""
	}
	return fmt.Sprintf(": %+q", status.Message[:min(len(status.Message), maxMessage)])
}
