// Package tokens renews the tokens with which this cluster reads its neighbours:
// it asks each neighbour for the next one, with the present one, and puts it where
// the programs find it. The neighbour is not trusted: its answer is bounded, and
// taken only if it has the form of the token that was asked for.
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

// maxToken is the most that a token may have, in bytes: several times what API
// servers issue. It is part of each request.
const maxToken = 8192

// Claims are what a token of a Kubernetes service account says of itself. Nobody
// has verified it.
type Claims struct {
	// Issued and Expires are zero for a token of the old kind, which is good for
	// as long as its Secret is there.
	Issued, Expires time.Time
	// Namespace and Account are its service account.
	Namespace, Account string
	// Secret is what the token is bound to: it is good for as long as that is
	// there. Zero for a token that is bound to none.
	Secret Bound
}

// Bound is an object that a token is bound to.
type Bound struct {
	Name string
	UID  types.UID
}

// lifetime is how long the token is good for altogether.
func (c *Claims) lifetime() time.Duration { return c.Expires.Sub(c.Issued) }

// due reports whether a third of the token's life is over: early enough for a
// neighbour that is away for days.
func (c *Claims) due(now time.Time) bool { return !now.Before(c.Issued.Add(c.lifetime() / 3)) }

// form is that of a signed JWT in its compact form (RFC 7515, section 7.1), whose
// first two parts are JSON objects.
var form = regexp.MustCompile(`^eyJ[A-Za-z0-9_-]+\.(eyJ[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+$`)

// latest is the last time that a claim may give: the end of the year 9999.
const latest = 253402300799

// Parse reads what a token says of itself. No error quotes the token.
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
				Name string `json:"name"`
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
		return nil, errors.New("it names no service account")
	}
	if k.Secret.Name != "" && len(validation.IsDNS1123Subdomain(k.Secret.Name)) > 0 {
		return nil, errors.New("it is bound to a Secret without a proper name")
	}
	return &Claims{
		Issued: time.Unix(claims.Issued, 0), Expires: time.Unix(claims.Expires, 0),
		Namespace: k.Namespace, Account: k.Account.Name, Secret: Bound{Name: k.Secret.Name, UID: k.Secret.UID},
	}, nil
}
