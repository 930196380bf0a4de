// Package mirror makes services of other clusters available as local ones.
//
// A local service is a mirror, with the endpoints of a service of one remote; a global service, with
// those of the services of one namespace and name in all clusters, including the local one; or an
// import of the Multi-Cluster Services API, with those of the services that clusters export. The
// first two consist of a Service and EndpointSlices in the namespace of mirrors, an import of a
// ServiceImport, a Service and slices in its own. Each slice is that of one origin, so that one
// changed endpoint is one write.
//
// The name of a local service is the key of everything here:
//
//	what clusters publish ──► index by name ─┐                  ┌── plan ── Diff ── apply
//	                                         ├─► names ─► reconcile(name)             │
//	objects of this cluster ► index by name ─┘                  └──── responses ◄─────┘
//
// An event only adds names to a queue. A reconciliation lists what all clusters publish for one name,
// merges it (package mcs), and writes what differs from the existing objects. Nothing that was
// computed is kept between two reconciliations but quotas.
package mirror
