// Package origin has what is read of the services of a cluster that are mirrored, merged or
// exported: a Service and its EndpointSlices, trimmed to what copies have, and checked,
// because another cluster may write anything. All is pure.
package origin
