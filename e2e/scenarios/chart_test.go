package scenarios_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// helm returns the path of helm.
func helm(t *testing.T) string {
	t.Helper()
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Helm)
	must(t, err)
	return binaries[tools.Helm]
}

// chartArgs returns the arguments of a helm command for a release of the chart with the
// example's values.
func chartArgs(t *testing.T, command, cluster string, more ...string) []string {
	t.Helper()
	return append([]string{
		command, "semaphore", filepath.Join(deployFolder(t), "chart"), "--namespace", systemNamespace,
		"--values", filepath.Join(deployFolder(t), "example", cluster, "values.yaml"),
	}, more...)
}

// TestChartRendersAsKustomize compares the objects of the chart with those of the bases and
// components, for the example and with values instead of components.
func TestChartRendersAsKustomize(t *testing.T) {
	t.Parallel()
	helm := helm(t)
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Kubectl)
	must(t, err)
	for name, c := range map[string]struct {
		cluster    string
		components []string
		resources  []string
		set        []string
		settings   []string // besides those of the example
	}{
		"aws":           {cluster: "aws"},
		"gcp":           {cluster: "gcp"},
		"cleanup":       {cluster: "aws", components: []string{"wireguard/cleanup"}, set: []string{"wireguard.cleanup=true"}},
		"networkd":      {cluster: "aws", components: []string{"networkd"}, set: []string{"wireguard.networkd=true"}},
		"authenticated": {cluster: "aws", components: []string{"authenticated"}, set: []string{"metrics.auth=true"}},
		"calico":        {cluster: "aws", components: []string{"wireguard/pods/calico"}, set: []string{"wireguard.podPrefixes=calico"}},
		"cilium":        {cluster: "aws", components: []string{"wireguard/pods/cilium"}, set: []string{"wireguard.podPrefixes=cilium"}},
		"pods":          {cluster: "aws", components: []string{"wireguard/pods/pods"}, set: []string{"wireguard.podPrefixes=pods"}},
		"prefixes":      {cluster: "aws", components: []string{"wireguard/pods/prefixes"}, set: []string{"wireguard.podPrefixes=prefixes"}},
		"map": {
			cluster: "aws", components: []string{"wireguard/map"}, set: []string{"settings.podSubnetsMap=10.2.0.0/16=100.64.0.0/16"},
			settings: []string{"SEMAPHORE_POD_SUBNETS_MAP=10.2.0.0/16=100.64.0.0/16"},
		},
		"relay": {cluster: "aws", resources: []string{"relay"}, components: []string{"wireguard/relay"}, set: []string{"relay.enabled=true"}},
		"relay before agents": {
			cluster: "aws", resources: []string{"relay"}, components: []string{"authenticated"}, set: []string{"relay.enabled=true", "relay.agents=false", "metrics.auth=true"},
		},
		"imports": {
			cluster: "aws", components: []string{"service-mirror/mcs"}, set: []string{"mcs.enabled=true", "mcs.crds=false", "mcs.coreDNS.serviceAccount="},
		},
		"observability": {
			cluster: "aws", resources: []string{"observability"}, components: []string{"observability/operator"},
			set: []string{"metrics.rules=true", "metrics.dashboards=true", "metrics.podMonitor.enabled=true", "metrics.prometheusRule.enabled=true"},
		},
		"all at once": {
			cluster: "gcp", resources: []string{"relay"},
			components: []string{"networkd", "authenticated", "wireguard/pods/calico", "service-mirror/mcs", "wireguard/cleanup", "wireguard/relay"},
			set:        []string{"wireguard.networkd=true", "metrics.auth=true", "wireguard.podPrefixes=calico", "mcs.enabled=true", "mcs.crds=false", "mcs.coreDNS.serviceAccount=", "wireguard.cleanup=true", "relay.enabled=true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			folder := overlay(t, append([]string{"example/" + c.cluster}, c.resources...), c.components, c.settings...)
			want := command(t, binaries[tools.Kubectl], "kustomize", folder)
			args := chartArgs(t, "template", c.cluster, "--skip-tests", "--set", "policy.enabled=true")
			for _, set := range c.set {
				args = append(args, "--set", set)
			}
			wanted, got := manifestsByName(t, want), manifestsByName(t, command(t, helm, args...))
			// Helm keeps its release in the namespace.
			delete(wanted, "Namespace "+systemNamespace)
			if diff := cmp.Diff(wanted, got); diff != "" || len(wanted) < 50 {
				t.Errorf("%d objects (-kustomize +helm):\n%s", len(wanted), diff)
			}
		})
	}
}

// overlay writes a kustomization of folders of deploy, with settings besides those of a resource.
func overlay(t *testing.T, resources, components []string, settings ...string) string {
	t.Helper()
	// Kustomize takes no absolute paths.
	folder := t.TempDir()
	base, err := filepath.Rel(folder, deployFolder(t))
	must(t, err)
	paths := func(of []string) (all []string) {
		for _, o := range of {
			all = append(all, filepath.Join(base, o))
		}
		return all
	}
	kustomization := map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": paths(resources), "components": paths(components),
		"images": []any{map[string]any{"name": "kube-semaphore", "newTag": "v0.1.0"}}, // as the example's
	}
	if len(settings) > 0 {
		kustomization["configMapGenerator"] = []any{map[string]any{"name": "semaphore", "namespace": systemNamespace, "behavior": "merge", "literals": settings}}
	}
	text, err := yaml.Marshal(kustomization)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), text, 0o644))
	return folder
}

// command returns the output of a program.
func command(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, failed.String())
	}
	return string(out)
}

// manifestsByName returns objects in YAML by kind and name. Named items of containers and volumes are
// sorted: their order has no meaning.
func manifestsByName(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o unstructured.Unstructured
		must(t, yaml.Unmarshal([]byte(document), &o.Object))
		if o.Object == nil {
			continue
		}
		name := o.GetKind() + " " + o.GetName()
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		sortNamed(o.Object)
		all[name] = o.Object
	}
	return all
}

func sortNamed(in any) {
	switch in := in.(type) {
	case map[string]any:
		for key, value := range in {
			if list, is := value.([]any); is && slices.Contains([]string{"env", "volumes", "volumeMounts"}, key) {
				slices.SortFunc(list, func(a, b any) int {
					return strings.Compare(fmt.Sprint(a.(map[string]any)["name"]), fmt.Sprint(b.(map[string]any)["name"]))
				})
			}
			sortNamed(value)
		}
	case []any:
		for _, value := range in {
			sortNamed(value)
		}
	}
}

// TestChartRefusesWrongValues checks that the schema refuses wrong values, by their names.
func TestChartRefusesWrongValues(t *testing.T) {
	t.Parallel()
	helm := helm(t)
	for set, want := range map[string]string{
		"cluster=":                                      "/cluster",
		"cluster=A_B":                                   "/cluster",
		"remotes.local.apiURL=https://x":                "local",
		"remotes.merit.apiURL=https://x":                "podSubnets",
		"remotes.gcp.podSubnet=10.0.0.0/8":              "podSubnet",
		"remotes.gcp.podSubnets=10.4.0.0/16":            "/remotes/gcp/podSubnets",
		"remotes.gcp.podSubnets={all}":                  "/remotes/gcp/podSubnets/0",
		"remotes.gcp.apiURL=http://x":                   "/remotes/gcp/apiURL",
		"remotes.gcp.wgListenPort=70000":                "/remotes/gcp/wgListenPort",
		"remotes.gcp.wgMTU=large":                       "/remotes/gcp/wgMTU",
		"remotes.gcp.staleAfter=soon":                   "/remotes/gcp/staleAfter",
		"settings.logLevel=loud":                        "/settings/logLevel",
		"settings.logLvel=debug":                        "logLvel",
		"settings.nodeName=x":                           "nodeName",
		"image.digest=latest":                           "/image/digest",
		"imagePullSecrets={registry}":                   "/imagePullSecrets/0",
		"policy.enabled=yes":                            "/policy/enabled",
		"wireguard.podPrefixes=flannel":                 "/wireguard/podPrefixes",
		"wireguard.extraEnv[0].name=7":                  "/wireguard/extraEnv/0/name",
		"policy.podLabels.app\\.kubernetes\\.io/name=x": "propertyName 'app.kubernetes.io/name'",
		"policy.extraVolumes[0].emptyDir.medium=Memory": "/policy/extraVolumes/0",
		"policy.extraVolumeMounts[0].name=x":            "mountPath",
		"relay.enabled=1":                               "/relay/enabled",
		"relay.remotesSecret=x":                         "remotesSecret",
		"settings.remotesFrom=relay":                    "remotesFrom",
		"metrics.podMonitors.enabled=true":              "podMonitors",
		"relays.enabled=true":                           "relays",
		"variables.HTTPS_PROXY=7":                       "/variables/HTTPS_PROXY",
		"variables.a b=x":                               "a b",
		"calico.pools=v3":                               "/calico/pools",
	} {
		out, err := exec.CommandContext(t.Context(), helm, chartArgs(t, "template", "aws", "--set", set)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) || !strings.Contains(string(out), "schema") {
			t.Errorf("--set %s: %v, expected one that names %s:\n%s", set, err, want, out)
		}
	}
	for set, want := range map[string]string{
		"wireguard.extraEnv[0].name=SEMAPHORE_POD_NAME":                                                       "wireguard.extraEnv: SEMAPHORE_POD_NAME is set already",
		"tokens.extraEnv[0].name=GOGC,tokens.extraEnv[1].name=GOGC":                                           "tokens.extraEnv: GOGC is set already",
		"metrics.auth=true,wireguard.extraEnv[0].name=SEMAPHORE_LISTEN_AUTH":                                  "wireguard.extraEnv: SEMAPHORE_LISTEN_AUTH is set already",
		"metrics.auth=true,relay.enabled=true,relay.extraEnv[0].name=SEMAPHORE_LISTEN_AUTH":                   "relay.extraEnv: SEMAPHORE_LISTEN_AUTH is set already",
		"relay.enabled=true,wireguard.extraEnv[0].name=SEMAPHORE_REMOTES_FROM":                                "wireguard.extraEnv: SEMAPHORE_REMOTES_FROM is set already",
		"wireguard.podPrefixes=calico,wireguard.extraEnv[0].name=SEMAPHORE_WG_POD_CIDRS":                      "wireguard.extraEnv: SEMAPHORE_WG_POD_CIDRS is set already",
		"variables.SEMAPHORE_REMOTES=x":                                                                       "variables: SEMAPHORE_REMOTES is set already",
		"settings.logLevel=debug,variables.SEMAPHORE_LOG_LEVEL=info":                                          "variables: SEMAPHORE_LOG_LEVEL is set already",
		"serviceMirror.extraVolumes[0].name=probe":                                                            "serviceMirror.extraVolumes: probe is set already",
		"wireguard.networkd=true,wireguard.extraVolumes[0].name=networkd-state":                               "wireguard.extraVolumes: networkd-state is set already",
		"policy.extraVolumeMounts[0].name=x,policy.extraVolumeMounts[0].mountPath=/run/semaphore":             "policy.extraVolumeMounts: /run/semaphore is set already",
		"remotes.true.apiURL=https://x,remotes.true.podSubnets={10.6.0.0/16},remotes.true.wgListenPort=51841": "the name of a cluster is y, yes, on, of which YAML makes true: write it in quotes",
	} {
		out, err := exec.CommandContext(t.Context(), helm, chartArgs(t, "template", "aws", "--set", "policy.enabled=true,"+set)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("--set %s: %v, expected %q:\n%s", set, err, want, out)
		}
	}
	// YAML makes booleans of names that aren't quoted.
	for name, want := range map[string]string{"no": "YAML makes false", "off": "YAML makes false", "on": "YAML makes true", "y": "YAML makes true", `"no"`: ""} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		must(t, os.WriteFile(file, []byte("remotes:\n  "+name+": {apiURL: https://x, podSubnets: [10.6.0.0/16], wgListenPort: 51841}\n"), 0o600))
		out, err := exec.CommandContext(t.Context(), helm, chartArgs(t, "template", "aws", "--values", file)...).CombinedOutput()
		if want == "" && (err != nil || !strings.Contains(string(out), "\n  SEMAPHORE_REMOTES: gcp,no\n")) || want != "" && (err == nil || !strings.Contains(string(out), want)) {
			t.Errorf("a remote %s: %v, expected %q:\n%s", name, err, want, out)
		}
	}
	for _, set := range []string{
		"wireguard.extraEnv[0].name=SEMAPHORE_LISTEN_AUTH", "wireguard.extraEnv[0].name=SEMAPHORE_WG_POD_CIDRS",
		"remotes.gcp.wgMTU=1380", "remotes.gcp.wgMTU=auto", "remotes.gcp.maxAnswer=64Mi", "remotes.gcp.staleAfter=5m", "remotes.gcp.staleAfter=0",
		"settings.wgBackend=userspace", "settings.removalGrace=0", "remotes.gcp.kubeconfig=/x", "wireguard.extraEnv[0].name=GOGC",
	} {
		if out, err := exec.CommandContext(t.Context(), helm, chartArgs(t, "template", "aws", "--set", set)...).CombinedOutput(); err != nil {
			t.Errorf("--set %s: %v\n%s", set, err, out)
		}
	}
	command(t, helm, "lint", "--strict", filepath.Join(deployFolder(t), "chart"), "--values", filepath.Join(deployFolder(t), "example", "aws", "values.yaml"))
}

// TestChartValues checks what values put into the programs' pods and settings.
func TestChartValues(t *testing.T) {
	t.Parallel()
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	extra := func(program string) string {
		return strings.ReplaceAll("P.podLabels.team=net,P.extraVolumes[0].name=more,P.extraVolumes[0].emptyDir.medium=Memory,P.extraVolumeMounts[0].name=more,P.extraVolumeMounts[0].mountPath=/more", "P.", program+".")
	}
	objects := manifestsByName(t, command(t, helm(t), chartArgs(t, "template", "aws", "--skip-tests",
		"--set", "image.registry=registry.example,image.repository=kube-semaphore,image.digest="+digest+",image.pullPolicy=Always,imagePullSecrets[0].name=registry",
		"--set", "policy.resources.limits.memory=2Gi,policy.nodeSelector.pool=system,policy.podAnnotations.a=b,policy.extraEnv[0].name=GOGC,policy.extraEnv[0].value=50",
		"--set", extra("wireguard")+","+extra("policy")+","+extra("tokens"),
		"--set", "wireguard.podAnnotations.c=d,wireguard.extraEnv[0].name=GOGC,tokens.extraEnv[0].name=GOGC",
		"--set", `policy.podAnnotations.cluster-autoscaler\.kubernetes\.io/safe-to-evict-local-volumes=probe\,more`,
		"--set", "serviceMirror.enabled=false,networkPolicy.enabled=false",
		"--set", "variables.HTTPS_PROXY=http://proxy:3128,calico.pools=projectcalico.org/v3",
		"--set", "settings.logLevel=debug,settings.wgPeerMetrics=50,settings.mirrorSelector=,settings.wgSourceFilter=false",
		"--set", "remotes.b-1.kubeconfig=/etc/semaphore/remotes/b-1.kubeconfig,remotes.b-1.podSubnets={10.6.0.0/16,10.7.0.0/16,fd00:6::/48},remotes.b-1.wgListenPort=51841,remotes.b-1.maxObjects=1000000")...))
	path := func(name string, fields ...string) any {
		value, _, err := unstructured.NestedFieldNoCopy(objects[name], fields...)
		must(t, err)
		return value
	}
	pod := []string{"spec", "template", "spec"}
	for name, fields := range map[string][]string{
		"DaemonSet semaphore-wireguard": {"spec", "template"}, "Deployment semaphore-policy": {"spec", "template"}, "CronJob semaphore-tokens": {"spec", "jobTemplate", "spec", "template"},
	} {
		kind, program, _ := strings.Cut(name, " ")
		labels := path(name, append(slices.Clone(fields), "metadata", "labels")...)
		if diff := cmp.Diff(map[string]any{"app.kubernetes.io/name": program, "app.kubernetes.io/part-of": "kube-semaphore", "team": "net"}, labels); diff != "" {
			t.Errorf("labels of the pods of the %s %s: %s", kind, program, diff)
		}
		volumes, _ := path(name, append(slices.Clone(fields), "spec", "volumes")...).([]any)
		if more := map[string]any{"name": "more", "emptyDir": map[string]any{"medium": "Memory"}}; !slices.ContainsFunc(volumes, func(v any) bool { return cmp.Equal(v, more) }) {
			t.Errorf("%s: the volumes are %v", name, volumes)
		}
		containers, _ := path(name, append(slices.Clone(fields), "spec", "containers")...).([]any)
		mounts, _ := containers[0].(map[string]any)["volumeMounts"].([]any)
		if more := map[string]any{"name": "more", "mountPath": "/more"}; !slices.ContainsFunc(mounts, func(m any) bool { return cmp.Equal(m, more) }) {
			t.Errorf("%s: the mounts are %v", name, mounts)
		}
	}
	for _, name := range []string{"DaemonSet semaphore-wireguard", "Deployment semaphore-policy"} {
		containers, _ := path(name, append(pod, "containers")...).([]any)
		c := containers[0].(map[string]any)
		if c["image"] != "registry.example/kube-semaphore@"+digest || c["imagePullPolicy"] != "Always" {
			t.Errorf("%s: image %v, pull policy %v", name, c["image"], c["imagePullPolicy"])
		}
		if diff := cmp.Diff([]any{map[string]any{"name": "registry"}}, path(name, append(pod, "imagePullSecrets")...)); diff != "" {
			t.Errorf("%s: pull secrets %s", name, diff)
		}
		if env := c["env"].([]any); !slices.ContainsFunc(env, func(e any) bool { return e.(map[string]any)["name"] == "GOGC" }) {
			t.Errorf("%s: the environment is %v", name, env)
		}
	}
	if diff := cmp.Diff(map[string]any{"kubectl.kubernetes.io/default-container": "agent", "c": "d"}, path("DaemonSet semaphore-wireguard", "spec", "template", "metadata", "annotations")); diff != "" {
		t.Errorf("annotations of agents: %s", diff)
	}
	if diff := cmp.Diff(map[string]any{"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "probe,more", "a": "b"}, path("Deployment semaphore-policy", "spec", "template", "metadata", "annotations")); diff != "" {
		t.Errorf("annotations of semaphore-policy's pods: %s", diff)
	}
	if diff := cmp.Diff(map[string]any{"kubernetes.io/os": "linux", "pool": "system"}, path("Deployment semaphore-policy", append(pod, "nodeSelector")...)); diff != "" {
		t.Errorf("nodes of semaphore-policy: %s", diff)
	}
	containers := path("Deployment semaphore-policy", append(pod, "containers")...).([]any)
	if memory, _, _ := unstructured.NestedString(containers[0].(map[string]any), "resources", "limits", "memory"); memory != "2Gi" {
		t.Errorf("memory of semaphore-policy: %q", memory)
	}
	for _, name := range []string{"Deployment semaphore-service-mirror", "NetworkPolicy semaphore-policy"} {
		if objects[name] != nil {
			t.Errorf("there is a %s", name)
		}
	}
	for _, name := range []string{"ServiceAccount semaphore-wireguard-remote-b-1", "ServiceAccount semaphore-policy-remote-gcp", "DaemonSet semaphore-wireguard"} {
		if objects[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
	for name, cidr := range map[string]string{"remote-b-1": "10.6.0.0/16", "remote-b-1-2": "10.7.0.0/16", "remote-b-1-ipv6": "fd00:6::/48", "remote-gcp": "10.4.0.0/16"} {
		want := map[string]any{"cidr": cidr, "disabled": true, "natOutgoing": false, "disableBGPExport": true}
		if diff := cmp.Diff(want, path("IPPool "+name, "spec")); diff != "" {
			t.Errorf("pool %s: %s", name, diff)
		}
	}
	var settings map[string]any
	for name, o := range objects {
		if strings.HasPrefix(name, "ConfigMap semaphore-") {
			settings = o["data"].(map[string]any)
		}
	}
	want := map[string]any{
		"SEMAPHORE_CLUSTER_NAME": "aws", "SEMAPHORE_REMOTES": "b-1,gcp", "SEMAPHORE_LOG_LEVEL": "debug", "SEMAPHORE_WG_PEER_METRICS": "50",
		"SEMAPHORE_MIRROR_SELECTOR": "", "SEMAPHORE_WG_SOURCE_FILTER": "false",
		"SEMAPHORE_REMOTE_B_1_KUBECONFIG": "/etc/semaphore/remotes/b-1.kubeconfig", "SEMAPHORE_REMOTE_B_1_POD_SUBNETS": "10.6.0.0/16,10.7.0.0/16,fd00:6::/48", "HTTPS_PROXY": "http://proxy:3128",
		"SEMAPHORE_REMOTE_B_1_WG_LISTEN_PORT": "51841", "SEMAPHORE_REMOTE_B_1_MAX_OBJECTS": "1000000",
	}
	for name := range settings {
		if strings.HasPrefix(name, "SEMAPHORE_REMOTE_GCP_") {
			delete(settings, name) // See TestChartRendersAsKustomize.
		}
	}
	if diff := cmp.Diff(want, settings); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// TestChart installs, upgrades and uninstalls the chart on a real API server.
func TestChart(t *testing.T) {
	t.Parallel()
	helm := helm(t)
	tb := testbed.Start(t, testbed.Config{})
	cluster, err := tb.StartCluster(within(t, 2*time.Minute), testbed.ClusterConfig{Name: "aws"})
	must(t, err)
	clusters := []*testbed.Cluster{cluster}
	run := func(args ...string) string {
		t.Helper()
		out, err := tb.Run(within(t, 2*time.Minute), helm, append(args, "--kubeconfig", cluster.AdminKubeconfig())...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	values := []string{"--set", "mcs.enabled=true,metrics.auth=true,metrics.dashboards=true,relay.enabled=true,relay.agents=false,test.remote=x.example:80"}
	out := run(chartArgs(t, "install", "aws", append(values, "--create-namespace")...)...)
	for _, want := range []string{"semaphorectl tokens aws gcp", "wireguard.cleanup=true", "cluster.gcp", "relay.agents=true", "/bin/semaphore-relay status", "delete wireguardpeers --all"} {
		if !strings.Contains(out, want) {
			t.Errorf("the notes don't name %q:\n%s", want, out)
		}
	}
	installed := versions(t, clusters)
	if len(installed) < 70 {
		t.Errorf("%d objects", len(installed))
	}
	// The tests' pods are valid.
	for _, name := range []string{"agent", "remote"} {
		_, err := cluster.Client().CoreV1().Pods(systemNamespace).Get(t.Context(), "semaphore-test-"+name, metav1.GetOptions{})
		if err == nil {
			t.Errorf("the pod of the test %s runs without a test", name)
		}
	}
	hooks := run("get", "hooks", "semaphore", "--namespace", systemNamespace)
	file := filepath.Join(t.TempDir(), "hooks.yaml")
	must(t, os.WriteFile(file, []byte(hooks), 0o600))
	if out, err := cluster.Kubectl(t.Context(), "apply", "--dry-run=server", "--validate=strict", "-f", file); err != nil || strings.Count(out, "created") != 2 {
		t.Errorf("pods of the tests: %v\n%s", err, out)
	}

	run(chartArgs(t, "upgrade", "aws", values...)...)
	if diff := cmp.Diff(installed, versions(t, clusters)); diff != "" {
		t.Errorf("a second application changes:\n%s", diff)
	}
	if out := run(chartArgs(t, "upgrade", "aws", append(values, "--set", "settings.logLevel=debug,wireguard.cleanup=true,relay.agents=true")...)...); strings.Contains(out, "relay.agents") {
		t.Errorf("the notes name a step that was done:\n%s", out)
	}
	changed := versions(t, clusters)
	settings := slices.DeleteFunc(slices.Collect(maps.Keys(changed)), func(name string) bool {
		return !strings.HasPrefix(name, "aws configmaps "+systemNamespace+"/semaphore-")
	})
	if len(settings) != 1 || installed[settings[0]] != "" {
		t.Errorf("after a change of a setting the ConfigMaps are %q", settings)
	}
	set, err := cluster.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), "semaphore-wireguard", metav1.GetOptions{})
	must(t, err)
	if c := set.Spec.Template.Spec.Containers[0]; !slices.Equal(c.Args, []string{"-cleanup"}) || c.ReadinessProbe != nil || c.EnvFrom[0].ConfigMapRef.Name != strings.TrimPrefix(settings[0], "aws configmaps "+systemNamespace+"/") {
		t.Errorf("the agents that clean up are %+v", c)
	} else if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "SEMAPHORE_REMOTES_FROM" && e.Value == "relay" }) || slices.ContainsFunc(set.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Secret != nil }) {
		t.Errorf("the agents don't read from the relay, or have credentials: %+v", set.Spec.Template.Spec)
	}
	run("rollback", "semaphore", "1", "--namespace", systemNamespace)

	run("uninstall", "semaphore", "--namespace", systemNamespace)
	if diff := cmp.Diff([]string{
		"aws customresourcedefinitions.apiextensions.k8s.io /serviceexports.multicluster.x-k8s.io",
		"aws customresourcedefinitions.apiextensions.k8s.io /serviceimports.multicluster.x-k8s.io",
		"aws customresourcedefinitions.apiextensions.k8s.io /wireguardpeers.semaphore.uw.io",
		"aws namespaces /" + systemNamespace,
	}, slices.Sorted(maps.Keys(versions(t, clusters)))); diff != "" {
		t.Errorf("left after the uninstallation (-want +got):\n%s", diff)
	}
	// Also with the CRDs that were kept.
	run(chartArgs(t, "install", "aws", values...)...)
}

// versions returns the resource versions of our objects by name, without helm's own.
func versions(t *testing.T, clusters []*testbed.Cluster) map[string]string {
	t.Helper()
	all := map[string]string{}
	each(t, clusters, func(name string, o *unstructured.Unstructured) {
		if (strings.Contains(name, "semaphore") || strings.Contains(name, "multicluster")) && !strings.Contains(name, "sh.helm.release") {
			all[name] = o.GetResourceVersion()
		}
	})
	return all
}
