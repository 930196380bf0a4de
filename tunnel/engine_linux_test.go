package tunnel

import (
	"os"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

func TestAnEngineThatEndsBeforeItAnswersHasEnded(t *testing.T) {
	nstest.Namespaces(t)
	away := control.Path + ".away"
	if err := os.Rename(control.Path, away); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Rename(away, control.Path); err != nil {
			t.Fatal(err)
		}
	}()
	listener, err := control.Replace(control.Path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		raw, err := listener.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		var c *control.Conn
		c = control.NewConn(raw, func(m control.Message, files control.Files) (control.Message, control.Files) {
			files.Close()
			if m.Op == control.End {
				c.Hangup()
			}
			return control.Message{Protocol: control.Protocol}, nil
		})
		c.Start()
		<-c.Done()
		served <- nil
	}()
	if err := EndEngine(t.Context()); err != nil {
		t.Error(err)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
