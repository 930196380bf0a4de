package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"strings"

	// User entries with auth-provider; exec plugins need no import.
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// rules are kubectl's rules for which kubeconfig files are read.
func (s *Session) rules() *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = s.kubeconfig
	return rules
}

// load reads the kubeconfig. Errors name the file and omit its content: a token may stand
// where another value is expected.
func (s *Session) load() (*clientcmdapi.Config, error) {
	rules := s.rules()
	config, err := rules.Load()
	if err == nil && len(config.Contexts) > 0 {
		if where := kube.Misplaced(config); where != "" {
			return nil, fmt.Errorf("the kubeconfig has a token as %s", where)
		}
		return config, nil
	}
	files := rules.GetLoadingPrecedence()
	if rules.ExplicitPath != "" {
		files = []string{rules.ExplicitPath}
	}
	var exist []string
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) && file != rules.ExplicitPath {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the kubeconfig: %w", err)
		}
		if _, err := kube.ParseKubeconfig(file, content); err != nil {
			return nil, err
		}
		exist = append(exist, file)
	}
	switch {
	case len(exist) == 0:
		return nil, fmt.Errorf("there is no kubeconfig: %s doesn't exist; select one with --kubeconfig or the variable KUBECONFIG", strings.Join(files, " or "))
	case err == nil:
		return nil, fmt.Errorf("the kubeconfig %s has no contexts; select another one with --kubeconfig or the variable KUBECONFIG", And(exist...))
	default:
		return nil, errors.New("read the kubeconfig: each file is valid, and they can't be merged")
	}
}

// ambiguous returns a remedy if several files of the kubeconfig have an entry of a context with
// equal names and another content: the first one is used, so that a context of one file may have
// the server or the user of another one.
func (s *Session) ambiguous(context string) string {
	type entry struct{ kind, name string }
	order := []entry{{"context", context}}
	files, values := map[entry][]string{}, map[entry]any{}
	differ := map[entry]bool{}
	var configs []*clientcmdapi.Config
	var paths []string
	for _, file := range s.rules().GetLoadingPrecedence() {
		config, err := clientcmd.LoadFromFile(file)
		if err != nil {
			continue // It doesn't exist, or load has reported it.
		}
		configs, paths = append(configs, config), append(paths, file)
		if c := config.Contexts[context]; c != nil && len(order) == 1 {
			order = append(order, entry{"cluster", c.Cluster}, entry{"user", c.AuthInfo})
		}
	}
	for i, config := range configs {
		for _, e := range order {
			var value any
			switch c, l, u := config.Contexts[e.name], config.Clusters[e.name], config.AuthInfos[e.name]; {
			case e.kind == "context" && c != nil:
				c.LocationOfOrigin = ""
				value = c
			case e.kind == "cluster" && l != nil:
				l.LocationOfOrigin = ""
				value = l
			case e.kind == "user" && u != nil:
				u.LocationOfOrigin = ""
				value = u
			default:
				continue
			}
			differ[e] = differ[e] || len(files[e]) > 0 && !reflect.DeepEqual(value, values[e])
			files[e], values[e] = append(files[e], paths[i]), value
		}
	}
	for _, e := range order {
		if differ[e] {
			return fmt.Sprintf("rename the %s %q in one of the kubeconfigs %s: each has another one, and that of the first file is used", e.kind, e.name, And(files[e]...))
		}
	}
	return ""
}

// context returns the configuration of a context. Errors omit all values of the kubeconfig
// but names.
func (s *Session) context(config *clientcmdapi.Config, name string) (*rest.Config, error) {
	c := config.Contexts[name]
	cluster, user := config.Clusters[c.Cluster], config.AuthInfos[c.AuthInfo]
	switch {
	case cluster == nil:
		return nil, fmt.Errorf("its cluster %q isn't in the kubeconfig", c.Cluster)
	case user == nil && c.AuthInfo != "":
		return nil, fmt.Errorf("its user %q isn't in the kubeconfig", c.AuthInfo)
	case user == nil:
		user = &clientcmdapi.AuthInfo{}
	}
	if err := kube.CheckServer(cluster.Server); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	made, err := clientcmd.NewNonInteractiveClientConfig(*config, name, nil, s.rules()).ClientConfig()
	if err == nil {
		// It reads the files of certificates and keys, and checks the user's plugin.
		_, err = rest.TransportFor(made)
	}
	if err != nil {
		return nil, errors.New(kube.WithoutValues(err.Error(), cluster, user))
	}
	return made, nil
}
