package programs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// GrantMirror applies to clusters what an operator applies: what the service mirror
// may do in its own cluster, and what neighbours may read.
func GrantMirror(ctx context.Context, clusters ...*testbed.Cluster) error {
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	for _, c := range clusters {
		for _, manifest := range []string{"wireguard/namespace.yaml", "service-mirror/rbac.yaml", "remote/service-mirror.yaml"} {
			if err := c.Apply(ctx, filepath.Join(root, "deploy", manifest)); err != nil {
				return fmt.Errorf("apply deploy/%s to %s: %w", manifest, c.Name, err)
			}
		}
	}
	return nil
}

// Mirror is semaphore-service-mirror on one node.
type Mirror struct{ *Program }

// PrepareMirror makes a replica that isn't started. Its name and port are its own on
// the node; the cluster and its remotes must have been given GrantMirror.
func PrepareMirror(ctx context.Context, binary, name string, port int, node *testbed.Node, remotes ...*testbed.Cluster) (*Mirror, error) {
	p, err := Prepare(ctx, ProgramConfig{
		Name: "semaphore-service-mirror", Replica: name, Binary: binary, Port: port,
	}, node, remotes...)
	if err != nil {
		return nil, err
	}
	p.Env["SEMAPHORE_NAMESPACE"], p.Env["SEMAPHORE_MIRROR_NAMESPACE"] = Namespace, Namespace
	return &Mirror{p}, nil
}

// Get asks the replica for a path such as /metrics. An answer other than 200 is
// an error with its text.
func (r *Mirror) Get(ctx context.Context, path string) (string, error) {
	body, code, err := r.Ask(ctx, path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s of %s: %d %s", path, r.Name, code, body)
	}
	return body, err
}

// MirrorStatus is what we read of the replica's /status.
type MirrorStatus struct {
	Leading  bool `json:"leading"`
	Election struct {
		Leader string `json:"leader"`
	} `json:"election"`
	Services []struct {
		Name  string `json:"name"`
		Error string `json:"error"`
	} `json:"services"`
}

// Status asks the replica for its status.
func (r *Mirror) Status(ctx context.Context) (*MirrorStatus, error) {
	body, err := r.Get(ctx, "/status")
	if err != nil {
		return nil, err
	}
	status := &MirrorStatus{}
	if err := json.Unmarshal([]byte(body), status); err != nil {
		return nil, fmt.Errorf("status of %s: %w", r.Name, err)
	}
	return status, nil
}
