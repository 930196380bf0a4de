package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tools"
)

// database is the Go vulnerability database.
const database = "https://vuln.go.dev"

// reached is what govulncheck exits with when our code reaches a vulnerability
// (https://pkg.go.dev/golang.org/x/vuln/cmd/govulncheck).
const reached = 3

// vulnerabilitiesCommand looks for known vulnerabilities that our code reaches. An
// unreachable database is reported, and isn't an error.
func vulnerabilitiesCommand(ctx context.Context, in invocation) error {
	db := in.flags.String("db", database, "`address` of the vulnerability database")
	if err := in.parse(0); err != nil {
		return err
	}
	if away := reach(ctx, *db); away != nil {
		return notChecked(ctx, in, away)
	}
	binaries, err := tools.Build(ctx, tools.Config{Progress: in.stderr}, tools.Govulncheck)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, binaries[tools.Govulncheck], "-db", *db, "./...")
	cmd.Dir = in.root
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = in.stdout, in.stderr
	err = cmd.Run()
	if err == nil {
		return nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == reached {
		return errors.New("our code reaches known vulnerabilities")
	}
	if away := reach(ctx, *db); away != nil {
		return notChecked(ctx, in, away)
	}
	return fmt.Errorf("govulncheck: %w", err)
}

// notChecked prints why nothing was checked, unless the context is done.
func notChecked(ctx context.Context, in invocation, reason error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(in.stdout, "not checked: the vulnerability database can't be reached: %v\n", reason)
	return err
}

// reach asks the database for the time of its last change
// (https://go.dev/security/vuln/database#api).
func reach(ctx context.Context, db string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	address := strings.TrimSuffix(db, "/") + "/index/db.json.gz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", address, response.Status)
	}
	return nil
}
