//go:build race

package cli

// raceEnabled is whether the race detector is on, which makes processing ten times slower.
const raceEnabled = true
