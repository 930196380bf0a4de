package testbed

import (
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// startControllers runs kube-controller-manager and kube-scheduler if configured. Both wait for the API server while it is down.
func (p *controlPlane) startControllers() error {
	if !p.config.Controllers {
		return nil
	}
	arguments := map[string][]string{
		tools.KubeControllerManager: {
			"--use-service-account-credentials",
			"--service-account-private-key-file=" + p.file("service-account.key"),
			"--root-ca-file=" + p.cluster.CAFile(),
		},
		tools.KubeScheduler: nil,
	}
	for name, args := range arguments {
		binary, err := p.cluster.tb.tool(name)
		if err != nil {
			return err
		}
		_, err = p.space.Start(sandbox.Command{
			Name: p.cluster.Name + "-" + name,
			Path: binary,
			Env:  oneProcessor,
			Log:  p.cluster.tb.LogPath(p.cluster.Name + "-" + name),
			Args: append(args,
				"--kubeconfig="+p.cluster.AdminKubeconfig(),
				"--leader-elect=false",
				// Its endpoints aren't used here.
				"--secure-port=0",
				"--profiling=false"),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
