package tokens

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// requestTimeout is for all of one request.
	requestTimeout = 30 * time.Second
	// maxAnswer is the most that is read of an answer, maxCA of an authority's
	// certificates, and maxMessage the most that is quoted; all in bytes.
	maxAnswer, maxCA, maxMessage = 64 << 10, 64 << 10, 200
	// minLifetime is the least that an API server issues a token for, maxLifetime
	// the most that the admission policy of deploy/remote lets it.
	minLifetime, maxLifetime = 10 * time.Minute, 30 * 24 * time.Hour
)

// server is the API server of a neighbour.
type server struct {
	url string
	ca  []byte // certificates, in PEM
}

// next asks for the token that takes the place of a present one, for as long as
// that was issued for, and checks that it does.
func (s *server) next(ctx context.Context, present string, of *Claims) (token string, claims *Claims, err error) {
	if token, err = s.request(ctx, present, of); err != nil {
		return "", nil, err
	}
	claims, err = Parse(token)
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("the answer holds no token: %w", err)
	case claims.Namespace != of.Namespace || claims.Account != of.Account:
		return "", nil, errors.New("the answer holds a token of another account")
	case claims.Secret != of.Secret:
		return "", nil, errors.New("the answer holds a token that is bound to something else")
	case !claims.Expires.After(of.Expires):
		return "", nil, fmt.Errorf("the answer holds a token that expires no later, at %s", claims.Expires.UTC().Format(time.RFC3339))
	}
	return token, claims, nil
}

// request makes a TokenRequest. It follows no redirect, and decompresses nothing.
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
	address, err := url.JoinPath(s.url, "api/v1/namespaces", of.Namespace, "serviceaccounts", of.Account, "token")
	if err != nil {
		return "", fmt.Errorf("address of the API server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+present)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	client, err := s.client()
	if err != nil {
		return "", err
	}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	// What matters of it has been read by then.
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the answer: %w", err)
	case len(content) > maxAnswer:
		return "", fmt.Errorf("answered with more than %d bytes", maxAnswer)
	case response.StatusCode != http.StatusCreated:
		return "", fmt.Errorf("answered with code %d%s", response.StatusCode, quote(content, present))
	}
	var answer authenticationv1.TokenRequest
	if err := json.Unmarshal(content, &answer); err != nil {
		return "", errors.New("the answer is no TokenRequest")
	}
	return answer.Status.Token, nil
}

// client returns one that trusts the neighbour's authority and nothing else.
func (s *server) client() (*http.Client, error) {
	if len(s.ca) > maxCA {
		return nil, fmt.Errorf("the certificates of its authority are more than %d bytes", maxCA)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.ca) {
		return nil, errors.New("there are no certificates of its authority")
	}
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxAnswer,
		},
	}, nil
}

// quote is the message of an API server's refusal, fit for a log, or nothing.
func quote(content []byte, secret string) string {
	var status metav1.Status
	if json.Unmarshal(content, &status) != nil || status.Message == "" || strings.Contains(status.Message, secret) {
		return ""
	}
	return fmt.Sprintf(": %+q", status.Message[:min(len(status.Message), maxMessage)])
}
