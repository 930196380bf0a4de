package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	neturl "net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// picture is where TestDashboard draws the panels. It takes ten minutes then, so that there is
// something to see.
var picture = flag.String("picture", "", "`file` for a drawing of the dashboard's panels")

// withoutData are the queries and metrics that may have no data in TestDashboard, and why.
var withoutData = map[string]string{
	"Writes B in Guards: semaphore-policy": "a conflict with another client's write",
	"Writes B in Nodes: semaphore-relay":   "a conflict with another client's write",

	"semaphore_wg_neighbour_table_full_total": "the kernel reports it for the first network namespace only",
	"semaphore_wg_translation_enforced":       "only with a map of pod subnets",
}

// TestDashboard runs the queries of the dashboard and the alert rules in a Prometheus that
// scrapes each program of a mesh: at first no alert is active, then some are, because a node
// doesn't answer, another one is rejected, large packets are lost, and the controllers lose
// rights.
func TestDashboard(t *testing.T) {
	t.Parallel()
	p := startPair(t, 2)
	ctx := t.Context()
	aws, gcp := p.AWS, p.GCP
	for _, manifest := range []string{"../../policy/testdata/v3.yaml", "../../deploy/relay/crd.yaml"} {
		must(t, aws.Apply(ctx, manifest))
	}
	node := p.Agents[0].Node
	scraped := map[string][]string{}
	for _, agent := range p.Agents[:2] {
		scraped[programs.WireGuard] = append(scraped[programs.WireGuard], address(agent.Node, programs.StatusPort))
	}
	for i, name := range []string{programs.ServiceMirror, programs.Policy, programs.Relay} {
		port := 8100 + i
		must(t, programs.Grant(ctx, name, aws, gcp))
		controller, err := programs.Prepare(ctx, programs.Config{Name: name, Binary: program(t, name), Port: port}, node, gcp)
		must(t, err)
		must(t, controller.Start())
		scraped[name] = []string{address(node, port)}
	}
	putService(t, gcp, "shop", service("web", "global-service=true"), p.Pods[2])
	putService(t, gcp, "shop", service("db", "mirror-service=true"), p.Pods[3])
	forwarder(t, p.Agents[2].Node, "forwarder-1")
	for i, pod := range p.Pods[:2] {
		ask(t, pod, p.Pods[2+i].URL(programs.PodPort))
		ask(t, p.Pods[2+i], pod.URL(programs.PodPort))
	}
	prometheus := startPrometheus(t, node, scraped)
	settle := func() {
		if *picture != "" {
			time.Sleep(4 * time.Minute)
		}
	}

	eventually(t, 2*time.Minute, "no active alert in a mesh that is well", func(ctx context.Context) error {
		alerts, err := prometheus.alerts(ctx)
		if err == nil && len(alerts) > 0 {
			err = fmt.Errorf("active are %q", slices.Sorted(maps.Keys(alerts)))
		}
		return err
	})
	settle()
	if alerts, err := prometheus.alerts(ctx); err != nil || len(alerts) > 0 {
		t.Errorf("active are %q, %v", slices.Sorted(maps.Keys(alerts)), err)
	}

	for _, role := range []struct {
		name, kind string
		rules      []int
	}{{programs.ServiceMirror, "role", []int{0, 1}}, {programs.Policy, "clusterrole", []int{0}}, {programs.Relay, "role", []int{0}}} {
		for _, rule := range role.rules {
			_, err := aws.Kubectl(ctx, "patch", role.kind, role.name, "--namespace", systemNamespace, "--type=json",
				"-p", fmt.Sprintf(`[{"op":"replace","path":"/rules/%d/verbs","value":["get","list","watch"]}]`, rule))
			must(t, err)
		}
	}
	must(t, p.Testbed.DropLarge(p.Agents[1].Node, p.Agents[2].Node))
	// A node that doesn't answer, and one whose key isn't valid.
	for name, key := range map[string]string{"gcp-silent": tunnel.Key{9}.String(), "gcp-bad": "not a key"} {
		silent, err := gcp.AddNode(ctx, testbed.NodeConfig{Name: name})
		must(t, err)
		must(t, silent.Patch(ctx, fmt.Sprintf(`{"metadata":{"annotations":{"aws.wireguard.semaphore.uw.io/pubKey":%q,"aws.wireguard.semaphore.uw.io/endpoint":"%s:51820"}}}`,
			key, silent.Addresses()[0])))
	}
	putService(t, gcp, "shop", service("late", "mirror-service=true"), p.Pods[3])
	forwarder(t, p.Agents[3].Node, "forwarder-2")
	_, err := gcp.Client().CoreV1().Pods("sys-log").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pending", Labels: map[string]string{"policy.semaphore.uw.io/name": "forwarder"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	must(t, err)
	forgotten := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "spec": map[string]any{"nets": []any{}},
		"metadata": map[string]any{"name": "old-sys-log-forwarder", "labels": map[string]any{
			"managed-by": programs.Policy, "policy.semaphore.uw.io/name": "forwarder", "policy.semaphore.uw.io/namespace": "sys-log", "policy.semaphore.uw.io/cluster": "old",
		}},
	}}
	must(t, aws.ApplyObjects(ctx, forgotten))
	want := []string{
		"SemaphorePeerWithoutHandshake", "SemaphorePathSmallPacketsOnly", "SemaphoreNodeRejected", "SemaphoreMirrorFailing", "SemaphorePolicyFailing", "SemaphorePolicyCalicoFailing", "SemaphorePolicyForgotten", "SemaphoreRelayFailing",
	}
	eventually(t, 3*time.Minute, "the alerts about what is wrong", func(ctx context.Context) error {
		alerts, err := prometheus.alerts(ctx)
		for _, alert := range want {
			if err == nil && alerts[alert] == "" {
				err = fmt.Errorf("%s isn't among %q", alert, slices.Sorted(maps.Keys(alerts)))
			}
		}
		return err
	})
	settle()

	dashboard := readDashboard(t)
	row := ""
	for i := range dashboard.Panels {
		panel := &dashboard.Panels[i]
		if panel.Type == "row" {
			row = panel.Title
			continue
		}
		for j := range panel.Targets {
			target := &panel.Targets[j]
			name := fmt.Sprintf("%s %s in %s", panel.Title, target.RefID, row)
			err := testbed.Wait(within(t, 20*time.Second), name, func(ctx context.Context) (err error) {
				target.series, err = prometheus.query(ctx, panel.Type == "timeseries", fill.Replace(target.Expr))
				if err == nil && len(target.series) == 0 && withoutData[name] == "" {
					err = errors.New("no data of " + target.Expr)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	var clusters struct{ Data []string }
	selector := regexp.MustCompile(`^label_values\((.*), cluster\)$`).FindStringSubmatch(dashboard.Templating.List[1].Definition)
	must(t, prometheus.get(ctx, "/api/v1/label/cluster/values", neturl.Values{"match[]": {selector[1]}}, &clusters))
	if !slices.Equal(clusters.Data, []string{"aws", "gcp"}) {
		t.Errorf("clusters to choose from: %q", clusters.Data)
	}
	// The alerts that are inactive have data, too.
	for _, metric := range prometheus.metrics(t) {
		if series, err := prometheus.query(ctx, false, metric); err != nil || len(series) == 0 && withoutData[metric] == "" {
			t.Errorf("no data of %s, %v", metric, err)
		}
	}
	if *picture != "" {
		must(t, os.WriteFile(*picture, dashboard.svg(), 0o644))
	}
}

// fill fills in what Grafana does.
var fill = strings.NewReplacer("$__rate_interval", "30s", "$cluster", ".*")

// dashboard is what is used of deploy/observability/dashboard.json.
type dashboard struct {
	Title      string
	Templating struct {
		List []struct{ Definition string }
	}
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ H, W, X, Y int }
	Targets     []target
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct {
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
	}
}

type target struct {
	RefID, Expr  string
	LegendFormat string

	series []series
}

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(deployFolder(t), "observability", "dashboard.json"))
	must(t, err)
	var d dashboard
	must(t, json.Unmarshal(content, &d))
	return &d
}

// prometheus is a Prometheus on a node.
type prometheus struct {
	http  http.Client
	rules string // file
}

const prometheusPort = 9090

// startPrometheus scrapes programs, by job.
func startPrometheus(t *testing.T, node *testbed.Node, scraped map[string][]string) *prometheus {
	t.Helper()
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Prometheus)
	must(t, err)
	dir := t.TempDir()
	p := &prometheus{rules: filepath.Join(deployFolder(t), "observability", "rules.yaml")}
	p.http.Transport = &http.Transport{DialContext: node.Dial, DisableKeepAlives: true}
	config := map[string]any{
		"global":     map[string]any{"scrape_interval": "5s", "evaluation_interval": "5s"},
		"rule_files": []string{p.rules},
	}
	var jobs []any
	targets := 0
	for job, addresses := range scraped {
		jobs = append(jobs, map[string]any{"job_name": job, "static_configs": []any{map[string]any{"targets": addresses}}})
		targets += len(addresses)
	}
	config["scrape_configs"] = jobs
	text, err := json.Marshal(config) // JSON is YAML.
	must(t, err)
	file := filepath.Join(dir, "prometheus.yaml")
	must(t, os.WriteFile(file, text, 0o600))
	_, err = node.Start(sandbox.Command{Name: "prometheus", Path: binaries[tools.Prometheus], Args: []string{
		"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), fmt.Sprintf("--web.listen-address=127.0.0.1:%d", prometheusPort),
	}})
	must(t, err)
	eventually(t, 2*time.Minute, "Prometheus to scrape all programs", func(ctx context.Context) error {
		up, err := p.query(ctx, false, "up == 1")
		if err == nil && len(up) != targets {
			err = fmt.Errorf("%d of %d are up", len(up), targets)
		}
		return err
	})
	return p
}

// get makes a request to its API.
func (p *prometheus) get(ctx context.Context, path string, query neturl.Values, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s?%s", prometheusPort, path, query.Encode()), http.NoBody)
	if err != nil {
		return err
	}
	response, err := p.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// series is one of a result, with its values by Unix time in seconds.
type series struct {
	labels map[string]string
	points [][2]float64
}

// query returns the result of a query now, or over the last minutes.
func (p *prometheus) query(ctx context.Context, ranged bool, expr string) ([]series, error) {
	type sample [2]any
	var result struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  sample
				Values []sample
			}
		}
		Warnings []string
	}
	path, query := "/api/v1/query", neturl.Values{"query": {expr}}
	if ranged {
		now, since := time.Now(), 2*time.Minute
		if *picture != "" {
			since = 12 * time.Minute
		}
		path = "/api/v1/query_range"
		query.Set("start", strconv.FormatInt(now.Add(-since).Unix(), 10))
		query.Set("end", strconv.FormatInt(now.Unix(), 10))
		query.Set("step", strconv.Itoa(int(since.Seconds())/72))
	}
	if err := p.get(ctx, path, query, &result); err != nil {
		return nil, err
	}
	if len(result.Warnings) > 0 {
		return nil, fmt.Errorf("%s: %q", expr, result.Warnings)
	}
	var all []series
	for _, r := range result.Data.Result {
		s := series{labels: r.Metric}
		if !ranged {
			r.Values = []sample{r.Value}
		}
		for _, v := range r.Values {
			text, _ := v[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			at, _ := v[0].(float64)
			s.points = append(s.points, [2]float64{at, value})
		}
		all = append(all, s)
	}
	return all, nil
}

type alertRules struct {
	Data struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError, State string }
		}
	}
}

// alerts returns those that are pending or firing, by name. It is an error if a rule can't be
// evaluated.
func (p *prometheus) alerts(ctx context.Context) (map[string]string, error) {
	var rules alertRules
	if err := p.get(ctx, "/api/v1/rules", nil, &rules); err != nil {
		return nil, err
	}
	active, all := map[string]string{}, 0
	for _, group := range rules.Data.Groups {
		for _, r := range group.Rules {
			if all++; r.Health != "ok" {
				return nil, fmt.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
			}
			if r.State != "inactive" {
				active[r.Name] = r.State
			}
		}
	}
	if all == 0 {
		return nil, errors.New("no rules")
	}
	return active, nil
}

// metrics returns the names of metrics in the rules.
func (p *prometheus) metrics(t *testing.T) []string {
	t.Helper()
	var rules alertRules
	must(t, p.get(t.Context(), "/api/v1/rules", nil, &rules))
	var names []string
	for _, group := range rules.Data.Groups {
		for _, r := range group.Rules {
			names = append(names, regexp.MustCompile(`\b(kube_policy_)?semaphore_[a-z_]+`).FindAllString(r.Query, -1)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func address(node *testbed.Node, port int) string {
	return fmt.Sprintf("%s:%d", node.Addresses()[0], port)
}
