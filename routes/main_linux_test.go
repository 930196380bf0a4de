package routes

import (
	"os"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestMain(m *testing.M) { os.Exit(nstest.Main(m)) }
