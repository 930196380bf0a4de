// Package deploy embeds the chart, and parts of CoreDNS's configuration, for semaphorectl.
package deploy

import "embed"

// Files contains the chart, and the server blocks of CoreDNS.
//
//go:embed all:chart coredns/Corefile coredns/Corefile.clusterset
var Files embed.FS
