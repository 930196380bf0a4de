package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/process"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// renewalLimit bounds the renewal for all remotes, which runs concurrently.
const renewalLimit = 5 * time.Minute

// tokensProgram renews the tokens with which this cluster reads its remotes, as far as their
// renewal is due, and exits.
func tokensProgram() run.Program[config.Tokens] {
	return run.Program[config.Tokens]{Name: "semaphore-tokens", Load: config.LoadTokens, Run: renewTokens}
}

func renewTokens(cfg config.Tokens, log *slog.Logger) error {
	agent := fmt.Sprintf("semaphore-tokens/%s (%s)", process.Version(), cfg.ClusterName)
	local, err := kube.RESTConfig(kube.ClientConfig{Access: cfg.Local, UserAgent: agent, Logger: log})
	if err != nil {
		return fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	client, err := kube.NewClient(local)
	if err != nil {
		return fmt.Errorf("access to the local cluster %s: %w", cfg.ClusterName, err)
	}
	renewer := tokens.Renewer{Client: client, Namespace: cfg.Namespace, All: cfg.All, Now: time.Now, UserAgent: agent, Logger: log}
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		if r.Access.APIURL == "" {
			log.Debug("token not renewed: the remote is configured by a kubeconfig", "cluster", r.Name)
			continue
		}
		renewer.Remotes = append(renewer.Remotes, tokens.Remote{Name: r.Name, Access: r.Access})
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, renewalLimit, errors.New("not within "+renewalLimit.String()))
	defer cancel()
	return renewer.Run(ctx)
}
