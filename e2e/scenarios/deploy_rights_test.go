package scenarios_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/event"
)

// auditArgs are arguments for an audit log of all requests, without streaming of lists, as in
// older releases, whose clients list and watch.
func auditArgs(t *testing.T, log string) []string {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "audit.yaml")
	must(t, os.WriteFile(policy, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - level: Metadata
`), 0o644))
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--feature-gates=WatchList=false"}
}

// right is a right of one of our accounts, granted or used.
type right struct {
	account, verb string
	resource      string // with its group, as in "leases.coordination.k8s.io"
	namespace     string // empty: in all of them, or of what has none
	name          string // empty: of any name, or a request that has none
}

func (r right) String() string {
	text := r.account + " " + r.verb + " " + r.resource
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	if r.name != "" {
		text += " named " + r.name
	}
	return text
}

// covers reports whether r includes other.
func (r right) covers(other right) bool {
	return r.account == other.account && r.verb == other.verb && r.resource == other.resource &&
		(r.namespace == "" || r.namespace == other.namespace) && (r.name == "" || r.name == other.name)
}

// namesUsed returns the names of the requests that used r with its full scope, empty for requests
// without one: a right in all namespaces that was used in a single one could be narrower.
func (r right) namesUsed(used map[right]bool) map[string]bool {
	names, namespaces := map[string]bool{}, map[string]bool{}
	for u := range used {
		if r.covers(u) {
			names[u.name], namespaces[u.namespace] = true, true
		}
	}
	if r.namespace == "" && len(namespaces) == 1 && !namespaces[""] {
		return nil
	}
	return names
}

// forImports reports whether a right is one of the Multi-Cluster Services API. TestImports uses
// these, with the component mcs.
func (r right) forImports() bool { return strings.HasSuffix(r.resource, "."+v1beta1.GroupName) }

// used returns the rights that our accounts have used, from the audit logs.
func used(t *testing.T, logs ...string) map[right]bool {
	t.Helper()
	return usedSince(t, time.Time{}, logs...)
}

// usedSince is used for requests since a time.
func usedSince(t *testing.T, since time.Time, logs ...string) map[right]bool {
	t.Helper()
	rights := map[right]bool{}
	for _, log := range logs {
		readAudit(t, log, since, rights)
	}
	return rights
}

func readAudit(t *testing.T, log string, since time.Time, rights map[right]bool) {
	t.Helper()
	file, err := os.Open(log)
	must(t, err)
	defer func() { _ = file.Close() }() // Only read.
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb       string
			RequestURI string
			User       struct{ Username string }
			ObjectRef  struct {
				Resource, Subresource, APIGroup, Namespace, Name string
			}
			ResponseStatus           struct{ Code int }
			RequestReceivedTimestamp time.Time
		}
		must(t, json.Unmarshal(lines.Bytes(), &event))
		account, ours := strings.CutPrefix(event.User.Username, "system:serviceaccount:"+systemNamespace+":")
		object := event.ObjectRef
		if !ours || object.Resource == "" || event.RequestReceivedTimestamp.Before(since) {
			continue
		}
		if event.ResponseStatus.Code == http.StatusForbidden {
			t.Errorf("%s may not %s %s", account, event.Verb, object.Resource)
			continue
		}
		if strings.HasPrefix(account, "semaphore-policy-remote-") && object.Resource == "pods" &&
			!strings.Contains(event.RequestURI, "labelSelector=policy.semaphore.uw.io%2Fname") {
			t.Errorf("%s asks for more than labelled pods: %s", account, event.RequestURI)
		}
		r := right{account: account, verb: event.Verb, namespace: object.Namespace, name: object.Name}
		r.resource = qualified(object.Resource, object.Subresource, object.APIGroup)
		if r.verb == "create" && object.Subresource == "" {
			r.name = "" // Authorization of a create doesn't know the name.
		}
		rights[r] = true
		if r.verb == "patch" && event.ResponseStatus.Code == http.StatusCreated {
			// Server-side apply that creates an object needs both.
			r.verb, r.name = "create", ""
			rights[r] = true
		}
	}
	must(t, lines.Err())
}

func qualified(resource, subresource, group string) string {
	if subresource != "" {
		resource += "/" + subresource
	}
	if group != "" {
		resource += "." + group
	}
	return resource
}

// granted returns the rights of all accounts of our namespace.
func granted(t *testing.T, clusters ...*testbed.Cluster) map[right]bool {
	t.Helper()
	rights := map[right]bool{}
	for _, c := range clusters {
		readRoles(t, c, rights)
	}
	if len(rights) == 0 {
		t.Fatal("no rights at all")
	}
	return rights
}

func readRoles(t *testing.T, c *testbed.Cluster, rights map[right]bool) {
	t.Helper()
	rbac := c.Client().RbacV1()
	grant := func(subjects []rbacv1.Subject, namespace string, rules []rbacv1.PolicyRule) {
		for _, subject := range subjects {
			if subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace != systemNamespace {
				continue
			}
			for i := range rules {
				for _, r := range rightsOf(&rules[i]) {
					r.account, r.namespace = subject.Name, namespace
					rights[r] = true
				}
			}
		}
	}
	rules := func(ref rbacv1.RoleRef) []rbacv1.PolicyRule {
		if ref.Kind == "ClusterRole" {
			role, err := rbac.ClusterRoles().Get(t.Context(), ref.Name, metav1.GetOptions{})
			must(t, err)
			return role.Rules
		}
		role, err := rbac.Roles(systemNamespace).Get(t.Context(), ref.Name, metav1.GetOptions{})
		must(t, err)
		return role.Rules
	}
	everywhere, err := rbac.ClusterRoleBindings().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range everywhere.Items {
		if b := &everywhere.Items[i]; strings.HasPrefix(b.Name, "semaphore-") {
			grant(b.Subjects, "", rules(b.RoleRef))
		}
	}
	inNamespace, err := rbac.RoleBindings(systemNamespace).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range inNamespace.Items {
		b := &inNamespace.Items[i]
		grant(b.Subjects, b.Namespace, rules(b.RoleRef))
	}
}

// rightsOf returns the rights of a rule, without account and namespace.
func rightsOf(rule *rbacv1.PolicyRule) []right {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	var rights []right
	for _, group := range rule.APIGroups {
		if group == "semaphore.uw.io" {
			continue // Admission policies identify accounts by it.
		}
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					rights = append(rights, right{verb: verb, resource: qualified(resource, "", group), name: name})
				}
			}
		}
	}
	return rights
}

// compareRights checks that every granted right was used with its full scope: a right that
// was used in one namespace, or for one name, could be narrower.
func compareRights(t *testing.T, granted, used map[right]bool) {
	t.Helper()
	byText := func(a, b right) int { return strings.Compare(a.String(), b.String()) }
	for _, g := range slices.SortedFunc(maps.Keys(granted), byText) {
		names := g.namesUsed(used)
		switch {
		case len(names) == 0:
			t.Errorf("granted, and not used: %v", g)
		case g.name == "" && len(names) == 1:
			for name := range names {
				if strings.HasPrefix(name, "semaphore-") {
					t.Errorf("granted for any name, and used for %s only: %v", name, g)
				}
			}
		}
	}
	for _, u := range slices.SortedFunc(maps.Keys(used), byText) {
		covered := false
		for g := range granted {
			covered = covered || g.covers(u)
		}
		if !covered {
			t.Errorf("used, and not granted: %v", u)
		}
	}
}

// TestMissingRightIsReported withdraws one right after the other from the agents and their
// neighbours, and checks that status, logs or metrics report it.
func TestMissingRightIsReported(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent := p.Agents[0]
	forbidden := func(text string) error {
		if !strings.Contains(text, "forbidden") {
			return fmt.Errorf("no word of it in %q", text)
		}
		return nil
	}
	for _, c := range []struct {
		name       string
		cluster    *testbed.Cluster
		role, verb string
		reported   func(context.Context) error
	}{
		{"to publish", p.AWS, "semaphore-wireguard", "patch", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			if status.Published {
				return errors.New("says that it has published")
			}
			return forbidden(fmt.Sprint(status.Conditions))
		}},
		{"to follow its own node", p.AWS, "semaphore-wireguard", "watch", func(ctx context.Context) error {
			metrics, err := agent.Metrics(ctx)
			if err == nil && !failedWatch.MatchString(metrics) {
				err = errors.New("no failure is counted")
			}
			return err
		}},
		{"to follow the neighbour's nodes", p.GCP, "semaphore-wireguard-remote", "watch", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			return forbidden(status.Remote("gcp").API.Error)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, agent.Stop(within(t, repair)))
			restore := withoutVerb(t, c.cluster, c.role, c.verb)
			defer restore()
			must(t, agent.Start())
			eventually(t, repair, "the failure to be reported", c.reported)
		})
	}
	t.Run("to emit Events about a rejected node", func(t *testing.T) {
		bindings := p.AWS.Client().RbacV1().RoleBindings(systemNamespace)
		binding, err := bindings.Get(t.Context(), "semaphore-wireguard", metav1.GetOptions{})
		must(t, err)
		must(t, bindings.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}))
		must(t, p.AWS.AwaitRight(t.Context(), systemNamespace, agentAccount, authorizationv1.ResourceAttributes{
			Namespace: systemNamespace, Verb: "create", Resource: "events",
		}, false))
		_, err = p.GCP.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "gcp-bad", Annotations: map[string]string{"aws.wireguard.semaphore.uw.io/pubKey": "not a key"},
		}}, metav1.CreateOptions{})
		must(t, err)
		eventually(t, repair+event.Spread, "the failure to be reported", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			return forbidden(status.Failure("events"))
		})
		must(t, errors.Join(agent.Ready(t.Context()), agent.Healthy(t.Context())))
		must(t, p.WaitConnected(within(t, repair)))
		binding.ResourceVersion = ""
		_, err = bindings.Create(t.Context(), binding, metav1.CreateOptions{})
		must(t, err)
		eventually(t, time.Minute, "the Event", func(ctx context.Context) error {
			_, err := onlyEvent(ctx, p.AWS, "NodeRejected")
			return err
		})
		eventually(t, repair, "the end of the failure", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err == nil && status.Failure("events") != "" {
				err = errors.New(status.Failure("events"))
			}
			return err
		})
	})
	t.Run("to clean up", func(t *testing.T) {
		must(t, agent.Stop(within(t, repair)))
		restore := withoutVerb(t, p.AWS, "semaphore-wireguard", "get")
		defer restore()
		if err := agent.Cleanup(within(t, time.Minute)); err == nil {
			t.Error("ended as if all were well")
		}
	})
}

// failedWatch is a count of failures to watch the local cluster's nodes.
var failedWatch = regexp.MustCompile(`(?m)^semaphore_wg_node_watcher_failures_total\{cluster="aws",kind="nodes",verb="watch"\} [1-9]`)

// withoutVerb removes a verb on nodes from a role, which has the name of its account, waits
// until the API server enforces it, and returns a function that restores it.
func withoutVerb(t *testing.T, c *testbed.Cluster, role, verb string) (restore func()) {
	t.Helper()
	roles := c.Client().RbacV1().ClusterRoles()
	set := func(rules []rbacv1.PolicyRule) {
		have, err := roles.Get(t.Context(), role, metav1.GetOptions{})
		must(t, err)
		have.Rules = rules
		_, err = roles.Update(t.Context(), have, metav1.UpdateOptions{})
		must(t, err)
	}
	whole, err := roles.Get(t.Context(), role, metav1.GetOptions{})
	must(t, err)
	less := whole.DeepCopy().Rules
	for i := range less {
		less[i].Verbs = slices.DeleteFunc(less[i].Verbs, func(v string) bool { return v == verb })
	}
	set(less)
	must(t, c.AwaitRight(t.Context(), systemNamespace, role, authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes"}, false))
	return func() { set(whole.Rules) }
}
