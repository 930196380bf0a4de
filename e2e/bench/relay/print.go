package main

import (
	"fmt"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

// Rates of changes, for what is extrapolated.
const (
	// A kubelet reports every five minutes.
	heartbeats = 1.0 / 300
	// A node lives a day, and is added, changed and deleted.
	quiet = 3.0 / 86400
	// A rolling upgrade replaces a node each second.
	upgrade = 1.0
)

func (f *figures) results() []measure.Result {
	return []measure.Result{
		measure.Alone(f.name+", event", "B", f.eventBytes),
		measure.Alone(f.name+", CPU of an event and watcher", "s", f.eventCPU),
		measure.Alone(f.name+", CPU of a change without watchers", "s", f.bareCPU),
		measure.Alone(f.name+", first read", "B", f.firstBytes),
		measure.Alone(f.name+", CPU of a first read", "s", f.firstCPU),
		measure.Alone(f.name+", all have read", "s", f.firstTook),
		measure.Alone(f.name+", all have read after a restart", "s", f.restartTook),
		measure.Alone(f.name+", CPU of a restart", "s", f.restartCPU),
		measure.Alone(f.name+", memory of the API server", "B", f.memory),
	}
}

func (b *bench) print(all []figures) {
	row := func(format string, args ...any) { fmt.Fprintf(b.table, format+"\n", args...) }
	row("%d WATCHERS, %d NODES\tEVENT\tCPU\tFIRST READ\tCPU\tALL READ\tRESTART\tCPU\tAPI SERVER", b.watchers, b.nodes)
	for i := range all {
		f := &all[i]
		row("%s\t%.2f kB\t%.0f µs\t%.2f MB\t%.0f ms\t%.1f s\t%.1f s\t%.1f s\t%.0f MB", f.name, f.eventBytes/1e3, f.eventCPU*1e6,
			f.firstBytes/1e6, f.firstCPU*1e3, f.firstTook, f.restartTook, f.restartCPU, f.memory/1e6)
	}
	row("")
	row("EXTRAPOLATED, PER API SERVER\tSTEADY\tCORES\tUPGRADE\tCORES\tALL READ AGAIN\tCPU")
	for _, nodes := range []float64{1000, 5000} {
		for i := range all {
			f := &all[i]
			share := nodes / float64(f.nodes) // of a first read
			steady, upgraded := nodes*heartbeats, nodes*heartbeats+3*upgrade
			if i == len(all)-1 {
				// Objects of both clusters, and no heartbeats.
				steady, upgraded, share = 2*nodes*quiet, upgrade, 2*share
			}
			row("%.0f agents, %s\t%.2f MB/s\t%.2f\t%.2f MB/s\t%.2f\t%.1f GB\t%.0f s", nodes, f.name,
				steady*nodes*f.eventBytes/1e6, steady*nodes*f.eventCPU, upgraded*nodes*f.eventBytes/1e6, upgraded*nodes*f.eventCPU,
				share*nodes*f.firstBytes/1e9, share*nodes*f.firstCPU)
		}
		row("2 relays of %.0f nodes, %s\t%.2f MB/s\t%.3f\t\t\t%.2f GB\t%.1f s", nodes, all[0].name,
			2*nodes*heartbeats*all[0].eventBytes/1e6, 2*nodes*heartbeats*all[0].eventCPU,
			2*nodes/float64(all[0].nodes)*all[0].firstBytes/1e9, 2*nodes/float64(all[0].nodes)*all[0].firstCPU)
	}
}
