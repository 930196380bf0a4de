// Package shards converts between the nodes of clusters and the objects in which
// semaphore-relay stores them for agents, see v1alpha1.WireguardPeers:
//
//	semaphore-relay:  nodes   ─► Desired ─► Plan.Next ─► objects
//	agents:           objects ─► Decode  ─► Join      ─► nodes
//
// It is pure. Agents check the nodes as if they had read them from the API server of the
// remote; the relay only bounds their form.
package shards
