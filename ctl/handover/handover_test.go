package handover

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
)

// token returns a token of an account, bound to the Secret of the same name.
func token(account, uid string, expires time.Time) string { return tokenOf(account, "a", uid, expires) }

// tokenOf returns one of an account with a UID.
func tokenOf(account, accountUID, uid string, expires time.Time) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"ES256"}`)) + "." + part(fmt.Appendf(nil,
		`{"iat":%d,"exp":%d,"kubernetes.io":{"namespace":"sys-semaphore","serviceaccount":{"name":%q,"uid":%q},"secret":{"name":%q,"uid":%q}}}`,
		time.Now().Unix(), expires.Unix(), account, accountUID, account, uid)) + ".c2lnbmVk"
}

// endless returns a token that never expires.
func endless(word string) string {
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"ES256"}`)) + "." + part(fmt.Appendf(nil, `{"sub":%q}`, word)) + ".c2lnbmVk"
}

func secretOf(name string, kind corev1.SecretType, data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cli.Namespace, UID: "u"}, Type: kind, Data: data}
}

// neighbours returns gcp, with this CA and these tokens, and aws.
func neighbours(ca string, issue func(account string) string, secrets ...runtime.Object) (gcp, aws *cli.Cluster) {
	objects := append([]runtime.Object{}, secrets...)
	objects = append(objects, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt", Namespace: "kube-system"}, Data: map[string]string{"ca.crt": ca},
	})
	server := fake.NewClientset(objects...)
	server.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create := action.(clienttesting.CreateActionImpl)
		if create.Subresource != "token" {
			return false, nil, nil
		}
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: issue(create.Name)}}, nil
	})
	return &cli.Cluster{Name: "gcp", Client: server, Config: &rest.Config{}}, &cli.Cluster{Name: "aws", Client: fake.NewClientset(), Config: &rest.Config{}}
}

func stored(t *testing.T, aws *cli.Cluster) map[string]string {
	t.Helper()
	list, err := aws.Client.CoreV1().Secrets(cli.Namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, s := range list.Items {
		for key, value := range s.Data {
			found[s.Name+" "+key] = string(value)
		}
	}
	return found
}

func month(account string) string { return token(account, "u", time.Now().Add(30*24*time.Hour)) }

func TestHand(t *testing.T) {
	ca := kubetest.Certificate(t)
	gcp, aws := neighbours("# a comment\n"+ca+ca, month,
		secretOf("semaphore-wireguard-remote-aws", corev1.SecretTypeOpaque, nil),
		secretOf("semaphore-policy-remote-aws", corev1.SecretTypeServiceAccountToken, map[string][]byte{"token": []byte(endless("p")), "ca.crt": []byte(ca)}))
	if _, err := aws.Client.CoreV1().Secrets(cli.Namespace).Create(t.Context(),
		secretOf("semaphore-wireguard-remotes", corev1.SecretTypeOpaque, map[string][]byte{"merit.token": []byte("x")}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	tools, none, err := Hand(t.Context(), gcp, aws, manifests.Tools(), All)
	if err != nil || !cmp.Equal(tools, []string{"wireguard", "policy"}) || !cmp.Equal(none, []string{"mirror"}) {
		t.Errorf("handed over %q, not %q, error %v", tools, none, err)
	}
	got := stored(t, aws)
	issued := got["semaphore-wireguard-remotes gcp.token"]
	want := map[string]string{
		"semaphore-wireguard-remotes merit.token": "x", "semaphore-wireguard-remotes gcp.token": issued, "semaphore-wireguard-remotes gcp.ca.crt": ca + ca,
		"semaphore-policy-remotes gcp.token": endless("p"), "semaphore-policy-remotes gcp.ca.crt": ca,
	}
	if diff := cmp.Diff(want, got); diff != "" || issued == "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// A token of a tool that the neighbour doesn't have would be of use to a thief alone.
func TestNoTokenForToolsThatAreNotInstalled(t *testing.T) {
	gcp, aws := neighbours(kubetest.Certificate(t), month,
		secretOf("semaphore-wireguard-remote-aws", corev1.SecretTypeOpaque, nil), secretOf("semaphore-policy-remote-aws", corev1.SecretTypeOpaque, nil))
	tools, none, err := Hand(t.Context(), gcp, aws, []string{manifests.WireGuard}, All)
	if err != nil || !cmp.Equal(tools, []string{manifests.WireGuard}) || len(none) > 0 {
		t.Errorf("handed over %q, not %q, error %v", tools, none, err)
	}
	for key := range stored(t, aws) {
		if !strings.HasPrefix(key, "semaphore-wireguard-remotes ") {
			t.Errorf("stored %s", key)
		}
	}
}

// TestMissing replaces tokens that are missing, invalid, refused or about to expire.
func TestMissing(t *testing.T) {
	const name = "semaphore-wireguard-remote-aws"
	ca, later := kubetest.Certificate(t), time.Now().Add(20*24*time.Hour)
	good := token(name, "u", later)
	for what, c := range map[string]struct {
		token, ca string
		review    error
		refused   bool // by the API server
		stays     bool
	}{
		"good":                       {token: good, ca: ca, stays: true},
		"of an anchor before":        {token: token(name, "v", later), ca: ca},
		"of an account before":       {token: tokenOf(name, "z", "u", later), ca: ca},
		"refused":                    {token: good, ca: ca, refused: true},
		"without the right to ask":   {token: good, ca: ca, review: apierrors.NewForbidden(schema.GroupResource{}, "", nil), stays: true},
		"about to expire":            {token: token(name, "u", time.Now().Add(time.Hour)), ca: ca},
		"words":                      {token: "words", ca: ca},
		"another authority":          {token: good, ca: kubetest.Certificate(t)},
		"of a cluster with this key": {token: token("semaphore-policy-remote-aws", "u", later), ca: ca, refused: true},
	} {
		gcp, aws := neighbours(ca, month, secretOf(name, corev1.SecretTypeOpaque, nil), accountOf(name))
		gcp.Client.(*fake.Clientset).PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
			if review.Spec.Token != good {
				t.Errorf("%s: another token is sent to the API server", what)
			}
			review.Status.Authenticated = !c.refused
			return true, review, c.review
		})
		if _, err := aws.Client.CoreV1().Secrets(cli.Namespace).Create(t.Context(), secretOf("semaphore-wireguard-remotes", corev1.SecretTypeOpaque,
			map[string][]byte{"gcp.token": []byte(c.token), "gcp.ca.crt": []byte(c.ca)}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		tools, _, err := Hand(t.Context(), gcp, aws, manifests.Tools(), Missing)
		if err != nil || (len(tools) == 0) != c.stays {
			t.Errorf("%s: handed over %q, error %v", what, tools, err)
		}
		if got := stored(t, aws)["semaphore-wireguard-remotes gcp.ca.crt"]; got != ca {
			t.Errorf("%s: the authority is %q", what, got)
		}
	}
}

// TestRefused lets a neighbour issue invalid tokens and certificates: nothing is written or
// revoked, and errors contain no value.
func TestRefused(t *testing.T) {
	ca, name := kubetest.Certificate(t), "semaphore-policy-remote-aws"
	key := string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: []byte("secret words")}))
	good := month("semaphore-policy-remote-aws")
	for what, c := range map[string]struct{ token, ca string }{
		"a manifest behind the token": {good + "\n---\nkind: ClusterRoleBinding\n", ca},
		"two tokens":                  {good + "\n" + good, ca},
		"words":                       {"secret words", ca},
		"nothing":                     {"", ca},
		"a control sequence":          {"\x1b[2J" + good, ca},
		"a huge token":                {strings.Repeat("QUJD", 1<<16), ca},
		"another account's":           {month("semaphore-wireguard-remote-aws"), ca},
		"no authority":                {good, ""},
		"words as authority":          {good, "secret words"},
		"a key among them":            {good, ca + key},
		"no certificate":              {good, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("secret words")}))},
		"half a certificate":          {good, ca + "-----BEGIN CERTIFICATE-----\nAAAA"},
		"a huge authority":            {good, strings.Repeat(ca, 1000)},
	} {
		gcp, aws := neighbours(c.ca, func(string) string { return c.token }, secretOf(name, corev1.SecretTypeOpaque, nil))
		_, _, err := Hand(t.Context(), gcp, aws, manifests.Tools(), All)
		if err == nil || !strings.HasPrefix(err.Error(), "gcp: ") || strings.Contains(err.Error(), "secret words") || strings.Contains(err.Error(), "eyJ") {
			t.Errorf("%s: error %v", what, err)
		}
		if got := stored(t, aws); len(got) > 0 {
			t.Errorf("%s: stored %v", what, got)
		}
	}
	for what, second := range map[string]*corev1.Secret{
		"another kind of Secret":      secretOf(name, corev1.SecretTypeOpaque, map[string][]byte{"token": []byte("x")}),
		"a token that never expires":  secretOf(name, corev1.SecretTypeServiceAccountToken, map[string][]byte{"token": []byte(endless("x")), "ca.crt": []byte(ca)}),
		"a token that isn't there":    secretOf(name, corev1.SecretTypeServiceAccountToken, nil),
		"a static token that is none": secretOf(name, corev1.SecretTypeServiceAccountToken, map[string][]byte{"token": []byte("x"), "ca.crt": []byte(ca)}),
	} {
		gcp, aws := neighbours(ca, month, second, secretOf("semaphore-wireguard-remote-aws", corev1.SecretTypeOpaque, nil))
		if err := Revoke(t.Context(), quiet(), []Pair{{gcp, aws}}); err == nil || len(stored(t, aws)) > 0 {
			t.Errorf("%s: error %v", what, err)
		}
		anchor, err := gcp.Client.CoreV1().Secrets(cli.Namespace).Get(t.Context(), "semaphore-wireguard-remote-aws", metav1.GetOptions{})
		if err != nil || anchor.UID != "u" {
			t.Errorf("%s: tokens of another tool were revoked", what)
		}
	}
	gcp, aws := neighbours(ca, month)
	if _, _, err := Hand(t.Context(), gcp, aws, manifests.Tools(), All); err == nil || !strings.Contains(err.Error(), "gcp: it has no accounts for aws") {
		t.Errorf("without any Secret: %v", err)
	}
}
