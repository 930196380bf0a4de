// Package tokens renews the tokens for the API servers of remotes: it requests a new token
// from each remote with the current one, and stores it in the Secrets that the programs
// mount. Remotes are not trusted: the response is bounded, and accepted only with the
// expected claims.
package tokens

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// maxToken is the maximum length of a token in bytes, several times that of API servers'
// tokens. It is sent with each request.
const maxToken = 8192

// Claims are the unverified claims of a Kubernetes service account token.
type Claims struct {
	// Issued and Expires are zero for a legacy token, which is valid until its Secret is
	// deleted.
	Issued, Expires time.Time
	// Namespace and Account are its service account, and AccountUID is the UID of that: a token
	// isn't valid for another account of the same name.
	Namespace, Account string
	AccountUID         types.UID
	// Secret is the object that the token is bound to: it is valid until that is deleted.
	// Zero for an unbound token.
	Secret Bound
}

// Bound is an object that a token is bound to.
type Bound struct {
	Name string
	UID  types.UID
}

// lifetime is the total lifetime of the token.
func (c *Claims) lifetime() time.Duration { return c.Expires.Sub(c.Issued) }

// due reports whether a third of the token's lifetime is over: early enough for a remote
// that is unreachable for days.
func (c *Claims) due(now time.Time) bool { return !now.Before(c.Issued.Add(c.lifetime() / 3)) }

// form is that of a signed JWT in its compact form (RFC 7515, section 7.1), whose
// first two parts are JSON objects.
var form = regexp.MustCompile(`^eyJ[A-Za-z0-9_-]+\.(eyJ[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+$`)

// latest is the latest allowed time: the end of the year 9999.
const latest = 253402300799

// Parse returns the claims of a token. Errors don't quote the token.
func Parse(token string) (*Claims, error) {
	if len(token) > maxToken {
		return nil, fmt.Errorf("longer than %d bytes", maxToken)
	}
	parts := form.FindStringSubmatch(token)
	if parts == nil {
		return nil, errors.New("not a JSON Web Token")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, errors.New("its claims are not base64")
	}
	var claims struct {
		Issued     int64 `json:"iat"`
		Expires    int64 `json:"exp"`
		Kubernetes struct {
			Namespace string `json:"namespace"`
			Account   struct {
				Name string    `json:"name"`
				UID  types.UID `json:"uid"`
			} `json:"serviceaccount"`
			Secret struct {
				Name string    `json:"name"`
				UID  types.UID `json:"uid"`
			} `json:"secret"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return nil, errors.New("its claims are not those of Kubernetes")
	}
	if claims.Expires == 0 {
		return &Claims{}, nil
	}
	if claims.Issued <= 0 || claims.Expires <= claims.Issued || claims.Expires > latest {
		return nil, errors.New("its times make no sense")
	}
	k := &claims.Kubernetes
	if len(validation.IsDNS1123Label(k.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(k.Account.Name)) > 0 {
		return nil, errors.New("it has no valid service account")
	}
	if k.Secret.Name != "" && len(validation.IsDNS1123Subdomain(k.Secret.Name)) > 0 {
		return nil, errors.New("it is bound to a Secret with an invalid name")
	}
	return &Claims{
		Issued: time.Unix(claims.Issued, 0), Expires: time.Unix(claims.Expires, 0),
		Namespace: k.Namespace, Account: k.Account.Name, AccountUID: k.Account.UID, Secret: Bound{Name: k.Secret.Name, UID: k.Secret.UID},
	}, nil
}
