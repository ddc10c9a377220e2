package main

import (
	"fmt"
	"io"
)

func (p Plan) print(w io.Writer) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-34s %s\n", name, fmt.Sprintf(format, args...))
	}
	l, s := p.Load, p.Site
	fmt.Fprintf(w, "%s new keys/s in %d regions, %.2g retries each, remembered %s, answers of %d bytes\n\n", count(l.Rate), s.Regions, l.Retries, l.TTL, l.AnswerBytes)
	fmt.Fprintf(w, "Each region, with %s new keys/s\n", count(p.Rate))
	row("  Envoy", "%.1f cores at work, %d workers (%.0f %% used)", p.ProxyCores, p.Workers, 100*p.ProxyCores/float64(p.Workers))
	row("  shards", "%d (disk needs %d, memory %d, CPU time %d, the rate %d)", p.Shards, p.ShardsForDisk, p.ShardsForMemory, p.ShardsForCPU, p.ShardsForRate)
	row("  calls in one transaction", "%.1f", p.Grouping.calls)
	row("  connections to managers", "%d (%d to each shard)", p.Connections*p.Shards, p.Connections)
	row("  entries", "%s", count(p.Entries))
	row("  Envoy to managers", "%s/s", size(p.Network))
	row("  written to disks", "%s/s", size(p.DiskWrites))
	if s.Feed {
		row("  sent to other regions", "%s/s", size(p.Feed))
	}
	fmt.Fprintf(w, "Each shard\n")
	row("  --max-bytes", "%.0f (%s)", p.WindowBytes, size(p.WindowBytes))
	if s.JobBytes > 0 {
		row("  --job-max-bytes", "%.0f (%s)", s.JobBytes, size(s.JobBytes))
	}
	row("  memory", "%s", size(p.MemoryBytes))
	row("  disk", "%s", size(p.DiskBytes))
	row("  a start takes", "%.0f s", p.StartSeconds)
	for _, limit := range p.limits() {
		fmt.Fprintf(w, "! %s\n", limit)
	}
}

// count writes a number with a decimal prefix.
func count(v float64) string { return prefixed(v, "") }

// size writes a number of bytes with a decimal prefix.
func size(v float64) string { return prefixed(v, "B") }

func prefixed(v float64, unit string) string {
	prefixes := []string{"", "k", "M", "G", "T", "P"}
	i := 0
	for v >= 1000 && i < len(prefixes)-1 {
		v, i = v/1000, i+1
	}
	if suffix := prefixes[i] + unit; suffix != "" {
		return fmt.Sprintf("%.3g %s", v, suffix)
	}
	return fmt.Sprintf("%.3g", v)
}
