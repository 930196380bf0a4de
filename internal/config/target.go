package config

import "slices"

// targetVars are the flags of the original policy tool, which has one remote, and the
// variables of the remote that they set.
type targetVars struct {
	ClusterName  string `flag:"target-cluster-name" desc:"name of the only remote, instead of SEMAPHORE_REMOTES; SEMAPHORE_CLUSTER_NAME is not required then"`
	Kubeconfig   string `flag:"target-kube-config" of:"_KUBECONFIG" desc:"path of a kubeconfig for that remote; alternatively set -remote-api-url, -remote-ca-url and -remote-sa-token-path"`
	APIURL       string `flag:"remote-api-url" of:"_API_URL" desc:"https URL of the remote's API server"`
	CAURL        string `flag:"remote-ca-url" of:"_CA_URL" desc:"https URL that serves the CA certificates of the remote's API server"`
	TokenFile    string `flag:"remote-sa-token-path" of:"_TOKEN_FILE" desc:"path of a service account token"`
	ResyncPeriod string `flag:"pod-resync-period" of:"_RESYNC_PERIOD" desc:"interval at which all of the remote's pods are reconciled without an event (0: never)"`
}

// firstSet returns the first setting that is set, or nil.
func firstSet(settings []*setting) *setting {
	if i := slices.IndexFunc(settings, func(s *setting) bool { return s.set }); i >= 0 {
		return settings[i]
	}
	return nil
}

// readTarget defines the only remote by these flags, of which one is set, and otherwise by
// the remote's variables.
func (l *loader) readTarget(set *setting) {
	name := l.target[0]
	if name.text == "" {
		l.faults.add("-target-cluster-name", "required with %s: the name of the remote cluster", set.origin)
		return
	}
	remote := newRawRemote(name.text, "-target-cluster-name")
	lookUp(remote.settings)
	for _, s := range l.target[1:] {
		if s.text != "" {
			variable := groupPrefix(name.text) + s.tag.Get("of")
			i := slices.IndexFunc(remote.settings, func(to *setting) bool { return to.variable == variable })
			remote.settings[i].write(s.text, s.origin)
		}
	}
	l.remotes = append(l.remotes, remote)
}
