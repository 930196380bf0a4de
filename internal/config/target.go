package config

import (
	"os"
	"slices"
)

// acceptTarget makes the loader take the flags of the original policy tool.
func (l *loader) acceptTarget() error {
	var err error
	if l.targetSettings, err = inspect("", &l.target); err != nil {
		return err
	}
	for _, s := range l.targetSettings {
		s.origin = "-" + s.flags()[0]
	}
	return nil
}

// firstSet returns a setting that was written, or nil.
func firstSet(settings []*setting) *setting {
	if i := slices.IndexFunc(settings, func(s *setting) bool { return s.set }); i >= 0 {
		return settings[i]
	}
	return nil
}

// readTarget makes the only remote of these flags, of which one is set. The
// remote's variables count for what they don't say.
func (l *loader) readTarget(set *setting) error {
	t := &l.target
	if t.ClusterName == "" {
		l.faults.add("-target-cluster-name", "required with %s: the name of the remote cluster", set.origin)
		return nil
	}
	remote, err := newRawRemote(t.ClusterName, "-target-cluster-name", os.LookupEnv)
	if err != nil {
		return err
	}
	fields := map[*string]*string{
		&t.Kubeconfig:   &remote.vars.Kubeconfig,
		&t.APIURL:       &remote.vars.API.URL,
		&t.CAURL:        &remote.vars.CA.URL,
		&t.TokenFile:    &remote.vars.TokenFile,
		&t.ResyncPeriod: &remote.vars.ResyncPeriod,
	}
	for _, s := range l.targetSettings {
		if to := fields[s.value]; to != nil && s.set {
			remote.of(to).write(*s.value, s.origin)
		}
	}
	l.remotes = append(l.remotes, remote)
	return nil
}
