package config

import "slices"

// targetVars are the flags of the original policy tool, which knows one remote, and
// the variables of the remote that they stand for. They have none of their own.
type targetVars struct {
	ClusterName  string `flag:"target-cluster-name" desc:"the only remote, in place of SEMAPHORE_REMOTES; SEMAPHORE_CLUSTER_NAME isn't required then"`
	Kubeconfig   string `flag:"target-kube-config" of:"_KUBECONFIG" desc:"path of a kubeconfig for it; or the next ones"`
	APIURL       string `flag:"remote-api-url" of:"_API_URL" desc:"https address of its API server"`
	CAURL        string `flag:"remote-ca-url" of:"_CA_URL" desc:"https address of its certificate authority"`
	TokenFile    string `flag:"remote-sa-token-path" of:"_TOKEN_FILE" desc:"path of a service account's token"`
	ResyncPeriod string `flag:"pod-resync-period" of:"_RESYNC_PERIOD" desc:"how often all of its pods are looked at again without an event"`
}

// firstSet returns the first setting that was written, or nil.
func firstSet(settings []*setting) *setting {
	if i := slices.IndexFunc(settings, func(s *setting) bool { return s.set }); i >= 0 {
		return settings[i]
	}
	return nil
}

// readTarget makes the only remote of these flags, of which one is set. The
// remote's variables count for what they don't say.
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
