package statuspage

import (
	"cmp"
	"fmt"
	"time"
)

// Override is an object whose writes don't last.
type Override struct {
	Object string `json:"object"`
	// Returned: the response to a write differed from the request, because of an admission
	// policy, a webhook, or a server that doesn't know a field. Otherwise a client changed
	// the object after writes.
	Returned bool `json:"returned,omitempty"`
	// By is the field manager of the last foreign change of the object; empty: unknown.
	By string `json:"by,omitempty"`
	// Since is the time of the first override, Next that of the next attempt if neither the
	// desired nor the observed state changes.
	Since time.Time `json:"since"`
	Next  time.Time `json:"next"`
}

// String says what happens to the object. It doesn't change while that is the same.
func (o *Override) String() string {
	if o.Returned {
		return o.Object + ": the API server stores other values than those written (an admission policy, a webhook, or a server that doesn't know a field)"
	}
	return fmt.Sprintf("%s: %s changes it after each write", o.Object, cmp.Or(o.By, "another client"))
}
