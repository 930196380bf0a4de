package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

const (
	// readTime bounds the wait until programs have read new credentials: a kubelet updates the
	// files of a Secret within a minute and a half, and a program tries them every 20 s.
	readTime = 3 * time.Minute
	// readPause is the pause between two reads of all reports.
	readPause = 2 * time.Second
)

// Await waits until no program of a cluster has credentials on disk that the API server of
// another one refuses. Handed are the tools that this run has handed over new tokens for, by
// these other clusters: their programs must also have the new ones on disk.
func Await(ctx context.Context, s *cli.Session, c *cli.Cluster, handed map[string][]string) error {
	issued, err := issuedAt(ctx, c, handed)
	if err != nil {
		return err
	}
	var state error
	said, unread := false, ""
	err = wait.PollUntilContextTimeout(ctx, readPause, readTime, true, func(ctx context.Context) (bool, error) {
		programs := inspect.Collect(ctx, []*cli.Cluster{c}, inspect.Reports)[0]
		if ctx.Err() != nil {
			return false, nil
		}
		state, unread = outdated(programs, handed, issued), unreported(programs)
		if state != nil && !said {
			said = true
			s.Say("%s: waiting until its programs have read the new tokens: kubelets update their files within a minute or two", c.Name)
		}
		return state == nil, nil
	})
	if unread != "" {
		s.Warn("%s: whether all programs have tokens that are accepted isn't known: %s", c.Name, unread)
	}
	if err == nil {
		return nil
	}
	return errors.Join(cmp.Or(state, err), context.Cause(ctx))
}

// issuedAt returns when the tokens were issued that a cluster has of others for tools.
func issuedAt(ctx context.Context, c *cli.Cluster, handed map[string][]string) (map[[2]string]time.Time, error) {
	all := map[[2]string]time.Time{}
	for from, tools := range handed {
		for _, tool := range tools {
			have, err := c.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, secret(tool), metav1.GetOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, fmt.Errorf("%s: read the Secret %s: %w", c.Name, secret(tool), err)
			}
			if err != nil {
				continue
			}
			if claims, err := tokens.Parse(strings.TrimSpace(string(have.Data[from+".token"]))); err == nil {
				all[[2]string{from, tool}] = claims.Issued
			}
		}
	}
	return all, nil
}

// toolOf returns the tool whose Secret a program mounts.
func toolOf(program string) string {
	switch program {
	case inspect.ServiceMirror:
		return manifests.Mirror
	case inspect.NetworkPolicy:
		return manifests.Policy
	}
	return manifests.WireGuard
}

// outdated returns an error if a program's credentials for one of the clusters are refused, or
// aren't those that were handed over.
func outdated(c *inspect.Cluster, handed map[string][]string, issued map[[2]string]time.Time) error {
	for t := range c.CredentialChecks() {
		tools, concerned := handed[t.Remote]
		if !concerned {
			continue
		}
		name, tool := t.Program, toolOf(t.Program)
		if t.Node != "" {
			name += " on " + t.Node
		}
		remedy := "if that doesn't end, restart it: " + restart(c.Access, tool)
		switch {
		case t.Error != "" && (t.Reason == kube.TokenRefused || t.Reason == kube.CredentialsMissing):
			return fmt.Errorf("%s: %s: a request to %s with the credentials on disk: %s; %s", c.Name, name, t.Remote, t.Error, remedy)
		case slices.Contains(tools, tool) && t.Issued != nil && t.Issued.Before(issued[[2]string{t.Remote, tool}]):
			return fmt.Errorf("%s: %s hasn't read the new token for %s yet; %s", c.Name, name, t.Remote, remedy)
		}
	}
	return nil
}

// unreported returns why the report of a program that is ready isn't known; empty: all are.
func unreported(c *inspect.Cluster) string {
	if !c.Pods.Known() {
		return c.Pods.Err
	}
	for _, r := range c.Reports() {
		if r.Err != "" && r.Pod.Ready && !r.Pod.Deleting {
			return r.Pod.Name + ": " + r.Err
		}
	}
	return ""
}
