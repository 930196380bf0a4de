package inspect

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// numbered returns a list of so many names.
func numbered(n int) string {
	var words []string
	for i := range n {
		words = append(words, fmt.Sprintf("c%d", i))
	}
	return strings.Join(words, ",")
}

// TestHostileSettings reads settings of an attacker with write access to the namespace of a
// neighbour.
func TestHostileSettings(t *testing.T) {
	const gcp = "SEMAPHORE_REMOTE_GCP_"
	for name, c := range map[string]struct {
		data map[string]string
		says string // empty: valid
	}{
		"none":               {nil, ""},
		"honest":             {map[string]string{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "gcp, eu-1", gcp + "POD_SUBNETS": "10.4.0.0/16", gcp + "API_URL": "https://x:6443", "SEMAPHORE_X": "any\ntext"}, ""},
		"command":            {map[string]string{"SEMAPHORE_REMOTES": "https://e.example/x?ref=--upload-pack=id"}, `ConfigMap sys-semaphore/semaphore: SEMAPHORE_REMOTES: "https://e.example/x?ref=--upload-pack=id" is not a valid cluster name`},
		"path":               {map[string]string{"SEMAPHORE_REMOTES": "gcp,../gcp"}, `SEMAPHORE_REMOTES: "../gcp"`},
		"YAML":               {map[string]string{"SEMAPHORE_REMOTES": "a may\nkind: ClusterRoleBinding"}, `"a may\nkind: ClusterRoleBinding"`},
		"zone":               {map[string]string{"SEMAPHORE_REMOTES": "local"}, "the zone cluster.local is that of a cluster's own services"},
		"twice":              {map[string]string{"SEMAPHORE_REMOTES": "gcp,gcp"}, "listed twice"},
		"itself":             {map[string]string{"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "aws"}, "name of this cluster"},
		"empty":              {map[string]string{"SEMAPHORE_REMOTES": "gcp,"}, `SEMAPHORE_REMOTES: "" is not a valid cluster name`},
		"many":               {map[string]string{"SEMAPHORE_REMOTES": numbered(251)}, "251 remotes, more than 250"},
		"a few":              {map[string]string{"SEMAPHORE_REMOTES": numbered(250)}, ""},
		"name":               {map[string]string{"SEMAPHORE_CLUSTER_NAME": "a\x1b[2J"}, `SEMAPHORE_CLUSTER_NAME: "a\x1b[2J"`},
		"prefix":             {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "SERVICE_PREFIX": "x\n}\n. {"}, gcp + `SERVICE_PREFIX: "x\n}\n. {" can't begin`},
		"pods":               {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "POD_SUBNETS": "10.4.0.0/16,x"}, gcp + `POD_SUBNETS: "x" is not a subnet`},
		"nodes":              {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "NODE_SUBNETS": strings.Repeat("10.0.0.0/8,", 1001)}, "more than 1000 subnets"},
		"port":               {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "WG_LISTEN_PORT": "70000"}, "is not a port"},
		"server":             {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "API_URL": "http://x"}, "begins with https://"},
		"a map":              {map[string]string{PodSubnetsMap: "10.0.0.0/16=10.201.0.0/16,fd00:4::/48=fd00:c9::/48"}, ""},
		"no map":             {map[string]string{PodSubnetsMap: strings.Repeat("10.0.0.0/16=10.201.0.0/17\n,", 70)}, PodSubnetsMap + ": 10.0.0.0/16=10.201.0.0/17 maps between subnets of different lengths"},
		"a long map":         {map[string]string{PodSubnetsMap: strings.Repeat("x,", 1<<20)}, PodSubnetsMap + ": 2097152 bytes, more than 2048"},
		"no map of a remote": {map[string]string{"SEMAPHORE_REMOTES": "aws", "SEMAPHORE_REMOTE_AWS_POD_SUBNETS_MAP": "10.0.0.0/16"}, `SEMAPHORE_REMOTE_AWS_POD_SUBNETS_MAP: "10.0.0.0/16" is not a pair`},
		"namespaces":         {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "IMPORT_NAMESPACES": "shop,team-*"}, ""},
		"no namespaces":      {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "IMPORT_NAMESPACES": strings.Repeat("a\x1b[2J,", 70)}, gcp + `IMPORT_NAMESPACES: "a\x1b[2J" is neither the name of a namespace`},
		"services":           {map[string]string{MaxServices: "16383"}, ""},
		"no services":        {map[string]string{MaxServices: "0"}, MaxServices + `: "0" is not a number from 1 to 10000000`},
		"user":               {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "API_URL": "https://me:secret@x"}, "begins with https://"},
		"proxy":              {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "PROXY_URL": "socks5://198.51.100.7:1080"}, ""},
		"no proxy":           {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "PROXY_URL": "http://x/\x1b[2J"}, gcp + "PROXY_URL: not the URL of a proxy"},
		"user of a proxy":    {map[string]string{"SEMAPHORE_REMOTES": "gcp", gcp + "PROXY_URL": "http://me:secret@x"}, gcp + "PROXY_URL: user and password are not supported"},
		"label":              {map[string]string{"SEMAPHORE_POLICY_LABEL_DOMAIN": "a b"}, "is not a domain"},
		"mark":               {map[string]string{"SEMAPHORE_POLICY_MANAGED_BY": "us,x!=y"}, "is not the value of a label"},
		"key":                {map[string]string{"a\nb": "c"}, "not a valid key of a ConfigMap"},
	} {
		got, err := ParseSettings("sys-semaphore/semaphore", c.data)
		invalid, is := errors.AsType[*InvalidError](err)
		switch {
		case c.says == "":
			if err != nil || len(got) != len(c.data) {
				t.Errorf("%s: %v, %d of %d", name, err, len(got), len(c.data))
			}
		case !is || got != nil || !strings.Contains(invalid.Error(), c.says) || strings.Contains(invalid.Error(), "\n") || len(invalid.Error()) > 500 || strings.Contains(invalid.Error(), "secret"):
			t.Errorf("%s: settings %v, error %v, expected %q", name, got, err, c.says)
		}
	}
	if got := (Settings{"SEMAPHORE_REMOTES": "gcp, ..,eu-1"}).Remotes(); !cmp.Equal(got, []cluster.Name{"gcp", "eu-1"}) {
		t.Errorf("remotes %q", got)
	}
}

// TestHostileCluster reads invalid values: the errors name object and value, and no fact
// contains them.
func TestHostileCluster(t *testing.T) {
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "semaphore-wireguard", Namespace: cli.Namespace}}
	set.Spec.Template.Spec.Containers = []corev1.Container{{Image: "x", EnvFrom: []corev1.EnvFromSource{{
		ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "semaphore-x"}},
	}}}}
	f := Read(t.Context(), fakeCluster("https://127.0.0.1:40123",
		node("a b; reboot", "10.66.1.1", "10.2.1.0/24"), configMap("kube-system", "kube-root-ca.crt", "ca.crt", strings.Repeat("x", maxCertificates+1)),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: cli.Namespace}}, set,
		configMap(cli.Namespace, "semaphore-x", "SEMAPHORE_REMOTES", "../gcp")))
	var said []string
	for _, err := range f.Unread {
		if _, is := errors.AsType[*InvalidError](err); is {
			said = append(said, err.Error())
		}
	}
	for _, want := range []string{`a Node: metadata.name: "a b; reboot"`, "ConfigMap kube-system/kube-root-ca.crt: ca.crt: more than", `ConfigMap sys-semaphore/semaphore-x: SEMAPHORE_REMOTES: "../gcp"`} {
		if !strings.Contains(strings.Join(said, "\n"), want) {
			t.Errorf("no %q in %q", want, said)
		}
	}
	if len(f.Nodes) > 0 || f.CA != "" || f.Installed.Settings != nil {
		t.Errorf("facts %+v", f)
	}
}

// TestDeparted has names of clusters that left, which programs and people read.
func TestDeparted(t *testing.T) {
	for _, text := range []string{"../aws", "a\x1b[2J", strings.Repeat("a,", 251) + "a"} {
		if _, err := ParseSettings("n/m", map[string]string{"SEMAPHORE_DEPARTED_REMOTES": text}); !IsInvalid(err) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", text, err)
		}
	}
	s := Settings{}
	s.Depart([]cluster.Name{"merit", "aws"})
	s.Depart([]cluster.Name{"gcp", "merit"})
	if s["SEMAPHORE_DEPARTED_REMOTES"] != "aws,gcp,merit" {
		t.Error(s)
	}
	for i := range 300 {
		s.Depart([]cluster.Name{cluster.Name(fmt.Sprintf("c%d", i))})
	}
	if len(s.Departed()) > 250 {
		t.Errorf("%d names", len(s.Departed()))
	}
	s = Settings{"SEMAPHORE_DEPARTED_REMOTES": "aws"}
	s.Return("aws")
	if len(s) > 0 {
		t.Error(s)
	}
}
