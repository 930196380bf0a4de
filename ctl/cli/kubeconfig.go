package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
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
