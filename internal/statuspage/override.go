package statuspage

import "time"

// Override is an object whose writes don't last: an admission policy, another client, or an API
// server that doesn't know a field changes it after each of them.
type Override struct {
	Object string `json:"object"`
	// Since is the time of the first write that didn't last, Next that from which the next one is
	// made, unless the desired state changes before.
	Since time.Time `json:"since"`
	Next  time.Time `json:"next"`
}

// String says what happens to the object. It doesn't change while that is the same.
func (o *Override) String() string {
	return o.Object + ": an admission policy or another client changes it after each write"
}
