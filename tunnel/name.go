package tunnel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// maxLinkName is the maximum length of a link name: IFNAMSIZ without the terminating zero
// byte.
const maxLinkName = 15

const (
	namePrefix  = "wireguard."
	shortPrefix = "wg."
	aliasPrefix = "semaphore "
)

// DeviceName returns the name of the link to a remote cluster: wireguard.<remote>, the name
// in the original tool, if that fits a link name, else
// wg.<first 5 of remote>.<6 hex of sha256(remote)>.
func DeviceName(remote string) string {
	if name := namePrefix + remote; len(name) <= maxLinkName {
		return name
	}
	sum := sha256.Sum256([]byte(remote))
	return shortPrefix + remote[:5] + "." + hex.EncodeToString(sum[:3])
}

// Alias returns the link alias (IFLA_IFALIAS) that marks the link to a remote cluster as
// ours.
func Alias(remote string) string {
	return aliasPrefix + remote
}

// CheckNames returns an error if the shortened device names of two remotes are equal.
func CheckNames(remotes []string) error {
	owner := make(map[string]string, len(remotes))
	for _, remote := range remotes {
		name := DeviceName(remote)
		if other, taken := owner[name]; taken && other != remote {
			return fmt.Errorf("remotes %s and %s share the device name %s: rename one of the clusters", other, remote, name)
		}
		owner[name] = remote
	}
	return nil
}

// remoteOf returns the remote in an alias, and whether the alias is ours.
func remoteOf(alias string) (remote string, ours bool) {
	return strings.CutPrefix(alias, aliasPrefix)
}
