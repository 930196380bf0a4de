// Package controllers_test runs the controllers of semaphore-service-mirror and
// semaphore-policy on real API servers, with the accounts and rights of deploy/. Unit tests
// of mirror and policy run on API servers in memory (internal/testing/kubetest).
package controllers_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
)

func TestMain(m *testing.M) {
	// Each answer with Endpoints warns that they are deprecated.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	code := m.Run()
	// The testbed's processes and connections have ended by then, too.
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
