// Package deploy holds the manifests of this folder, for semaphorectl, which installs
// these and no others.
package deploy

import "embed"

// Files are the bases and components, as they are in this folder.
//
//go:embed authenticated coredns networkd policy remote service-mirror tokens wireguard
var Files embed.FS
