package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/docstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestOperatorsView inspects a mesh with the command "status" and the documented commands.
func TestOperatorsView(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	aws, gcp := p.Agents[0], p.Agents[1]
	binary := program(t, programs.WireGuard)
	// The command exits with code 1 exactly if there are faults.
	status := func(ctx context.Context, args ...string) (string, error) {
		return aws.Node.Run(ctx, binary, append([]string{"status"}, args...)...)
	}

	t.Run("all is well", func(t *testing.T) {
		var out string
		eventually(t, time.Minute, "a status without complaint", func(ctx context.Context) (err error) {
			out, err = status(ctx)
			return err
		})
		for _, want := range []string{"cluster aws, node " + aws.Node.Name, "wireguard.gcp", gcp.Node.Name, "10.4.1.0/24,fd00:10:4:1::/64", "all is well"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
		}
	})

	t.Run("as JSON", func(t *testing.T) {
		var out string
		eventually(t, repair, "a status without complaint", func(ctx context.Context) (err error) {
			out, err = status(ctx, "-o", "json")
			return err
		})
		var report programs.Status
		must(t, json.Unmarshal([]byte(out), &report))
		if peers := report.Remote("gcp").Peers; len(peers) != 1 || peers[0].Node != gcp.Node.Name || peers[0].Health != "up" {
			t.Errorf("peers of gcp: %+v", peers)
		}
	})

	t.Run("commands of the documents", func(t *testing.T) {
		commands, err := docstest.Commands(docstest.Operator)
		must(t, err)
		for _, c := range commands {
			if path, asked := strings.CutPrefix(c.Text, "curl -s http://127.0.0.1:7774"); asked {
				if body, code, err := aws.Ask(t.Context(), path); err != nil || code != http.StatusOK || body == "" {
					t.Errorf("%s\ncode %d, %v, body %q", c, code, err, body)
				}
				continue
			}
			eventually(t, repair, c.String(), func(ctx context.Context) error {
				out, err := aws.Node.Run(ctx, "sh", "-c", c.Text)
				if silent := strings.Contains(c.Text, " > "); err == nil && silent != (out == "") {
					err = errors.New("unexpected output")
				}
				if err != nil {
					return fmt.Errorf("%w, printed %q", err, out)
				}
				return nil
			})
		}
		if len(commands) < 4 {
			t.Errorf("found %d commands, want those that show how far a packet gets", len(commands))
		}
		out, err := aws.Node.Run(t.Context(), "ip", "route", "get", "10.4.1.7")
		must(t, err)
		if !strings.Contains(out, "dev wireguard.gcp") {
			t.Errorf("the documented command should show that the packet enters the tunnel:\n%s", out)
		}
	})

	// The API servers answer, and there are sessions.
	t.Run("a node that was unplugged is not well", func(t *testing.T) {
		must(t, p.Testbed.Drop(aws.Node, gcp.Node))
		waitWrong(t, status, "remote gcp: no more answers from 1 of 1 peers: "+gcp.Node.Name)
		must(t, p.Testbed.Restore(aws.Node, gcp.Node))
		eventually(t, repair, "a status without complaint", func(ctx context.Context) error {
			_, err := status(ctx)
			return err
		})
	})

	t.Run("a rejected node and an API server that is down are wrong", func(t *testing.T) {
		// A running agent would repair it.
		must(t, gcp.Stop(within(t, time.Minute)))
		_, err := p.GCP.Kubectl(t.Context(), "annotate", "--overwrite", "node", gcp.Node.Name,
			"aws.wireguard.semaphore.uw.io/endpoint=127.0.0.1:51820")
		must(t, err)
		waitWrong(t, status, "rejected, in whole or in part: "+gcp.Node.Name, "none of its nodes is a peer")
		p.GCP.StopAPI()
		waitWrong(t, status, "remote gcp: API server: ", "rejected, in whole or in part: "+gcp.Node.Name)
	})

	t.Run("an agent that is down is wrong", func(t *testing.T) {
		aws.Kill()
		waitWrong(t, status, "request the report from 127.0.0.1:7774: ")
	})
}

// TestStatusOfEachProgram runs the status command without a running program.
func TestStatusOfEachProgram(t *testing.T) {
	t.Parallel()
	nstest.Root(t) // As the other tests of this package, which build the programs too.
	for _, name := range []string{programs.WireGuard, programs.ServiceMirror, programs.Policy} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(within(t, time.Minute), program(t, name), "status", "-address", "127.0.0.1:1")
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), name+" status: request the report from 127.0.0.1:1: ") {
				t.Errorf("%v, printed %s", err, out)
			}
		})
	}
}

// waitWrong waits until the command fails and says all of this.
func waitWrong(t *testing.T, status func(context.Context, ...string) (string, error), want ...string) {
	t.Helper()
	eventually(t, repair, "complaints", func(ctx context.Context) error {
		out, err := status(ctx)
		if err == nil {
			return errors.New("no complaint:\n" + out)
		}
		for _, w := range want {
			if !strings.Contains(out+err.Error(), w) {
				return errors.New("no " + w + " in:\n" + out + err.Error())
			}
		}
		return nil
	})
}
