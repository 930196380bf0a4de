package judge

// scopes is a set of scopes of faults: pairs of nodes, by pair of clusters. The second
// cluster is empty for a fault of one cluster.
//
// It is indexed because both the scopes and the findings to explain can be as many as a
// cluster has nodes.
type scopes map[[2]string]map[[2]string]bool

// everyNode, as the second cluster, marks a fault of a whole cluster.
const everyNode = "**"

// anyNode matches any node or cluster. It isn't a valid name of either.
const anyNode = "*"

// maxScopes bounds the pairs of nodes of two clusters. Further faults explain nothing, so
// that their consequences are reported as causes.
const maxScopes = 1 << 20

// add adds a scope. That of a local fault, see Rule.Local, also counts for the cluster
// without the remote, and that of a whole cluster, see Rule.Whole, for faults towards it.
func (p scopes) add(s Scope, local, whole bool) {
	p.note([2]string{s.Cluster, s.Remote}, s.Node, s.Peer)
	if whole {
		p.note([2]string{s.Cluster, everyNode}, "", "")
	}
	if local && s.Remote != "" {
		p.note([2]string{s.Cluster, anyNode}, s.Node, "")
	}
}

func (p scopes) note(clusters [2]string, node, peer string) {
	nodes := p[clusters]
	if nodes == nil {
		nodes = map[[2]string]bool{}
		p[clusters] = nodes
	}
	if len(nodes) < maxScopes {
		nodes[[2]string{node, peer}] = true
		nodes[[2]string{anyNode, peer}] = true
		nodes[[2]string{node, anyNode}] = true
		nodes[[2]string{anyNode, anyNode}] = true
	}
}

// explain reports whether a fault in these scopes can explain a fault in s:
//
//	s                                explained by faults
//	a cluster or its node            of the cluster that are local
//	a cluster and a remote           of the cluster, with this remote or none
//	a node and a node of a remote    as above, seen from either side
//	anything with a remote           of the whole remote
//
// A scope without a node means all nodes. Reports of a hostile cluster, or about it, can't
// explain faults between other clusters or of another cluster alone.
func (p scopes) explain(s Scope) bool {
	if s.Remote == "" {
		return p.have(s.Cluster, "", s.Node, "") || p.have(s.Cluster, anyNode, s.Node, "")
	}
	if p.have(s.Remote, everyNode, "", "") {
		return true
	}
	there := func(s Scope) bool {
		return p.have(s.Cluster, s.Remote, s.Node, s.Peer) || p.have(s.Cluster, "", s.Node, "")
	}
	return there(s) || s.Peer != "" && there(s.turned())
}

func (p scopes) have(cluster, remote, node, peer string) bool {
	nodes := p[[2]string{cluster, remote}]
	if nodes == nil {
		return false
	}
	for _, n := range names(node) {
		for _, o := range names(peer) {
			if nodes[[2]string{n, o}] {
				return true
			}
		}
	}
	return false
}

// names returns the keys to look up for a node.
func names(node string) []string {
	if node == "" {
		return []string{anyNode}
	}
	return []string{node, ""}
}
