package reconcile

import (
	"sync"
	"testing"
)

func TestTriggerKeepsOneSignal(t *testing.T) {
	trigger := NewTrigger()
	select {
	case <-trigger.C():
		t.Fatal("a new trigger has fired")
	default:
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(trigger.Fire)
	}
	wg.Wait()
	<-trigger.C()
	select {
	case <-trigger.C():
		t.Fatal("a second signal was waiting")
	default:
	}
}
