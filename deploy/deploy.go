// Package deploy embeds the manifests of this folder for semaphorectl.
package deploy

import "embed"

// Files contains the bases and components.
//
//go:embed authenticated coredns networkd policy relay remote service-mirror tokens wireguard
var Files embed.FS
