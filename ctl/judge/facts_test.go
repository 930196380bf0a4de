package judge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/texttest"
)

// TestFacts runs the cases of testdata/facts, whose README.md describes their format.
func TestFacts(t *testing.T) {
	texttest.Run(t, "testdata/facts/*.txt", func(t *testing.T) func([]string) string {
		clusters := inspecttest.Pair(2)
		p := &patient{clusters[0], clusters[1]}
		return func(step []string) string {
			for _, line := range step {
				if err := p.fact(line); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
			}
			return findings(t, diagnose(t, clusters, nil, false))
		}
	})
}

// findings returns the causes, and what is unknown.
func findings(t *testing.T, d *Diagnosis) string {
	t.Helper()
	var b strings.Builder
	for _, c := range d.Causes {
		if len(c.Evidence) == 0 || c.Remedy == "" || c.What == "" {
			t.Errorf("%s lacks something: %+v", c.ID, c)
		}
		where := strings.TrimSuffix(c.Where.Cluster+"/"+c.Where.Node, "/")
		if c.Where.Remote != "" {
			where += " to " + strings.TrimSuffix(c.Where.Remote+"/"+c.Where.Peer, "/")
		}
		fmt.Fprintf(&b, "%s: %s: %s\n", c.ID, where, c.What)
		for _, e := range c.Evidence {
			fmt.Fprintf(&b, "  %s\n", strings.TrimSpace(cmp.Or(e.Text, e.Command)))
		}
	}
	if d.Verdict != Wrong {
		fmt.Fprintln(&b, d.Verdict)
		for _, o := range d.Unknown {
			fmt.Fprintf(&b, "  %s: %s\n", o.What, o.Why)
		}
	}
	return b.String()
}

// fact takes in one line.
func (p *patient) fact(line string) error {
	subject, what, _ := strings.Cut(line, " ")
	cluster := p.cluster(subject)
	if cluster == nil {
		return fmt.Errorf("no cluster or node %s", subject)
	}
	if subject == cluster.Name {
		return p.ofCluster(cluster, what)
	}
	for n := range cluster.Nodes.Value {
		node := &cluster.Nodes.Value[n]
		if match, _ := path.Match(subject, node.Name); !match {
			continue
		}
		if err := ofNode(cluster, node, what); err != nil {
			return err
		}
	}
	return nil
}

func (p *patient) cluster(subject string) *inspect.Cluster {
	for _, c := range []*inspect.Cluster{p.aws, p.gcp} {
		if name, _, _ := strings.Cut(subject, "-"); name == c.Name {
			return c
		}
	}
	return nil
}

func ofNode(c *inspect.Cluster, node *inspect.Node, what string) error {
	if what == "unpublished" {
		clear(node.Annotations)
		return nil
	}
	if what == "rollout" {
		next := inspecttest.Pair(2)[0].Agents[0]
		next.Value.Standby = &statuspage.Standby{Holder: "the agent before"}
		c.Agents = append(c.Agents, next)
		return nil
	}
	what, next := strings.CutPrefix(what, "next ")
	for i := range c.Agents {
		if c.Agents[i].Pod.Node != node.Name || next && c.Agents[i].Value.Standby == nil {
			continue
		}
		agent := c.Agents[i].Value
		if fails, is := strings.CutPrefix(what, "fails "); is {
			words := strings.SplitN(fails, ": ", 3)
			agent.Conditions = append(agent.Conditions, statuspage.Condition{Type: statuspage.Failing, Reason: words[0], Object: words[1], Message: words[2]})
			return nil
		}
		to, is := strings.CutPrefix(what, "to ")
		if !is {
			return set(reflect.ValueOf(agent), what)
		}
		words := strings.Fields(to) // gcp-1 down no_answer, and "heard" if bytes are received
		for j := range agent.Remotes[0].Peers {
			peer := &agent.Remotes[0].Peers[j]
			if match, _ := path.Match(words[0], peer.Node); match {
				down(peer, words[2], int64(len(words)-3))
			}
		}
		return nil
	}
	return fmt.Errorf("no agent on %s", node.Name)
}

func (p *patient) ofCluster(c *inspect.Cluster, what string) error {
	word, rest, _ := strings.Cut(what, " ")
	switch word {
	case "dead":
		*c = inspect.Cluster{Name: c.Name, Kubernetes: inspect.Fact[string]{Err: "refused"}}
	case "installs":
		var w inspect.Workload
		if _, err := fmt.Sscanf(rest, "%s %d/%d", &w.Name, &w.Ready, &w.Wanted); err != nil {
			return err
		}
		w.Kind = "Deployment"
		c.Workloads.Value = append(c.Workloads.Value, w)
	case "coredns":
		text := ""
		for zone := range strings.SplitSeq(rest, ", ") {
			end := "}"
			if strings.HasPrefix(zone, "# ") {
				end = "# }"
			}
			text += zone + " {\n" + end + "\n"
		}
		c.DNS.Value = setupOf(text)
	case "copies":
		p.services(rest, 2)
	default:
		if name, is := strings.CutPrefix(what, "mirror."); is {
			if c.Mirrors == nil {
				c.Mirrors = []inspect.Reported[statuspage.Mirror]{{Fact: inspect.Fact[*statuspage.Mirror]{Value: &statuspage.Mirror{Leading: true}}}}
			}
			return set(reflect.ValueOf(c.Mirrors[0].Value), name)
		}
		if name, is := strings.CutPrefix(what, "policy."); is {
			if c.Policies == nil {
				report := &statuspage.Policy{Leading: true, Remotes: []statuspage.PolicyRemote{{Name: "gcp"}}}
				c.Policies = []inspect.Reported[statuspage.Policy]{{Fact: inspect.Fact[*statuspage.Policy]{Value: report}}}
			}
			return set(reflect.ValueOf(c.Policies[0].Value), name)
		}
		return set(reflect.ValueOf(c), what)
	}
	return nil
}

// set sets a field by its path as in JSON, such as "remotes.gcp.api.error: refused", or removes
// it, as in "remotes.gcp.peers.gcp-2 gone". Elements of lists are found by their names; "+" adds one.
func set(v reflect.Value, what string) error {
	at, value, assigned := strings.Cut(what, ": ")
	at, gone := strings.CutSuffix(at, " gone")
	if assigned == gone {
		return fmt.Errorf("neither a value nor gone")
	}
	return setAt(v, strings.Split(at, "."), value, gone)
}

func setAt(v reflect.Value, at []string, value string, gone bool) error {
	if v.Kind() == reflect.Pointer && len(at) > 0 {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return setAt(v.Elem(), at, value, gone)
	}
	if len(at) == 0 {
		if gone {
			v.SetZero()
			return nil
		}
		return parse(v, value)
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); tag == at[0] {
				return setAt(v.Field(i), at[1:], value, gone)
			}
		}
		if f := v.FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, at[0]) }); f.IsValid() {
			return setAt(f, at[1:], value, gone)
		}
		if inner := v.FieldByName("Value"); inner.IsValid() { // of a Fact
			return setAt(inner, at, value, gone)
		}
	case reflect.Slice:
		if at[0] == "+" {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			return setAt(v.Index(v.Len()-1), at[1:], value, gone)
		}
		for i := range v.Len() {
			if nameOf(v.Index(i)) != at[0] {
				continue
			}
			if gone && len(at) == 1 {
				v.Set(reflect.AppendSlice(v.Slice(0, i), v.Slice(i+1, v.Len())))
				return nil
			}
			return setAt(v.Index(i), at[1:], value, gone)
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		element := reflect.New(v.Type().Elem()).Elem()
		if err := setAt(element, at[1:], value, gone); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(at[0]), element)
		return nil
	}
	return fmt.Errorf("no %s in a %v", at[0], v.Type())
}

// nameOf returns the name of an element of a list: that of itself, its node or its pod's node.
func nameOf(v reflect.Value) string {
	for _, name := range []string{"Name", "Node"} {
		if f := v.FieldByName(name); f.IsValid() {
			return f.String()
		}
	}
	if pod := v.FieldByName("Pod"); pod.IsValid() {
		return pod.FieldByName("Node").String()
	}
	return ""
}

// parse sets a value by its text, JSON, or a time like now-3h.
func parse(v reflect.Value, text string) error {
	if since, is := strings.CutPrefix(text, "now"); is {
		d, err := time.ParseDuration(cmp.Or(since, "0s"))
		at := inspecttest.Now.Add(d)
		if v.Kind() == reflect.Pointer {
			v.Set(reflect.ValueOf(&at))
		} else {
			v.Set(reflect.ValueOf(at))
		}
		return err
	}
	if _, is := v.Interface().(time.Duration); is {
		d, err := time.ParseDuration(text)
		v.Set(reflect.ValueOf(d))
		return err
	}
	if v.Kind() == reflect.String {
		v.SetString(text)
		return nil
	}
	return json.Unmarshal([]byte(text), v.Addr().Interface())
}
