package doctor

// places are where something is wrong: by two clusters, the second one empty where it is
// about one of them, nodes of these.
//
// They are looked up, and not compared one by one: a cluster can have as many as it has
// nodes, and what is to be explained can be as many.
type places map[[2]string]map[[2]string]bool

// whichever is any node, where it isn't known or doesn't matter. No node has this name.
const whichever = "*"

// mostPlaces bounds the pairs of nodes that are kept of two clusters. What is wrong with
// more of them explains nothing, and is told as all that isn't explained.
const mostPlaces = 1 << 20

// add adds a place. What is wrong there by the cluster's own word and making, and not by a
// remote's, is a place of the cluster without the remote, too.
func (p places) add(s Scope, local bool) {
	p.note([2]string{s.Cluster, s.Remote}, s.Node, s.Peer)
	if local && s.Remote != "" {
		p.note([2]string{s.Cluster, whichever}, s.Node, "")
	}
}

func (p places) note(clusters [2]string, node, peer string) {
	nodes := p[clusters]
	if nodes == nil {
		nodes = map[[2]string]bool{}
		p[clusters] = nodes
	}
	if len(nodes) < mostPlaces {
		nodes[[2]string{node, peer}] = true
		nodes[[2]string{whichever, peer}] = true
		nodes[[2]string{node, whichever}] = true
		nodes[[2]string{whichever, whichever}] = true
	}
}

// explain reports whether what is wrong at these places can explain what is wrong in s:
//
//	s is about                 explained by what is wrong
//	a cluster, or its node     there, without a part of a remote in it
//	a cluster and a remote     there, with this remote or with none
//	a node and one of another  there, as above, and so from the other side
//	cluster
//
// Where one of both names no node it means all of them. So whatever a cluster says, or has
// others say of it, explains nothing of others among themselves, or of one by itself.
func (p places) explain(s Scope) bool {
	if s.Remote == "" {
		return p.have(s.Cluster, "", s.Node, "") || p.have(s.Cluster, whichever, s.Node, "")
	}
	there := func(s Scope) bool {
		return p.have(s.Cluster, s.Remote, s.Node, s.Peer) || p.have(s.Cluster, "", s.Node, "")
	}
	return there(s) || s.Peer != "" && there(s.turned())
}

func (p places) have(cluster, remote, node, peer string) bool {
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

// names are those of places for a node.
func names(node string) []string {
	if node == "" {
		return []string{whichever}
	}
	return []string{node, ""}
}
