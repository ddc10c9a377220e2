package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/examples/internal/stack"
)

// TestPredictionsMatchAMeasuredRun: what does not depend on the machine's speed (bytes of the log, of the window and
// between Envoy and manager) is as predicted. CPU times are shown only, because they depend on the machine.
func TestPredictionsMatchAMeasuredRun(t *testing.T) {
	bin := filepath.Join("..", "..", "build")
	proxy, err := stack.ChooseProxy(t.Context(), "envoy", bin)
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int{300, 5000} {
		l := DefaultLoad
		l.AnswerBytes, l.Retries = bytes, 0.2
		m, err := measure(t.Context(), bin, t.TempDir(), proxy, l, 1000)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bytes, %s: %+v", bytes, proxy, m)
		p := predict(l, callersGrouping)
		near := func(name string, predicted, measured float64) {
			t.Helper()
			if math.Abs(predicted-measured) > 0.25*measured {
				t.Errorf("answers of %d bytes, %s: predicted %.0f bytes, measured %.0f", bytes, name, predicted, measured)
			}
		}
		near("log", p.logBytes, m.logBytes)
		near("window", p.windowBytes, m.windowBytes)
		if proxy.Name() == "envoy" {
			near("network", p.networkBytes, m.networkBytes)
		}
		if m.proxyMicros <= 0 || m.managerMicros <= 0 || m.managerResident <= 0 {
			t.Errorf("no CPU time or memory was measured: %+v", m)
		}
	}
}

func TestPlanFollowsItsLoad(t *testing.T) {
	base := Calculate(DefaultLoad, DefaultSite)
	for name, c := range map[string]struct {
		change func(l *Load, s *Site)
		more   func(a, b Plan) bool
	}{
		"a longer TTL takes more shards, and a longer start": {
			func(l *Load, s *Site) { l.TTL *= 10 },
			func(a, b Plan) bool {
				return b.Shards > a.Shards && b.Entries == 10*a.Entries && b.StartSeconds > a.StartSeconds
			},
		},
		"larger answers take more disk, and no memory": {
			func(l *Load, s *Site) { l.AnswerBytes *= 3 },
			func(a, b Plan) bool { return b.DiskBytes > 2*a.DiskBytes && b.MemoryBytes == a.MemoryBytes },
		},
		"a record takes 2 bytes of memory": {
			func(l *Load, s *Site) { l.TTL /= 2 },
			func(a, b Plan) bool { return a.MemoryBytes-b.MemoryBytes == 2*(a.Entries-b.Entries) },
		},
		"a larger cache takes more memory": {
			func(l *Load, s *Site) { s.CacheBytes *= 2 },
			func(a, b Plan) bool { return b.MemoryBytes == a.MemoryBytes+1.5*a.Site.CacheBytes },
		},
		"a small disk asks for more shards": {
			func(l *Load, s *Site) { s.ShardDisk = 1e11 },
			func(a, b Plan) bool { return a.Shards == 1 && b.Shards == b.ShardsForDisk && b.Shards > 1 },
		},
		"a small state is seldom compacted": {
			func(l *Load, s *Site) { l.TTL = time.Minute },
			func(a, b Plan) bool { return a.DiskWrites == 2.5*b.DiskWrites },
		},
		"retries cost the proxy only": {
			func(l *Load, s *Site) { l.Retries = 10 },
			func(a, b Plan) bool { return b.ProxyCores > 2*a.ProxyCores && b.Shards == a.Shards },
		},
		"regions divide the rate": {
			func(l *Load, s *Site) { s.Regions = 5 },
			func(a, b Plan) bool { return b.Rate == a.Rate/5 && b.Entries == a.Entries/5 && b.Feed == 0 },
		},
		"a feed keeps all entries everywhere": {
			func(l *Load, s *Site) { s.Regions, s.Feed = 5, true },
			func(a, b Plan) bool { return b.Entries == a.Entries && b.Feed > 0 },
		},
		"jobs take disk besides the window": {
			func(l *Load, s *Site) { s.JobBytes = 6e9 },
			func(a, b Plan) bool { return b.DiskBytes == a.DiskBytes+7.8e9 && b.MemoryBytes == a.MemoryBytes+2e7 },
		},
		"each worker has a connection to each shard": {
			func(l *Load, s *Site) { s.Workers = 3 },
			func(a, b Plan) bool { return a.Connections == a.Workers && b.Connections == 3 },
		},
		"large answers have connections of their own": {
			func(l *Load, s *Site) { l.AnswerBytes = 1e6 },
			func(a, b Plan) bool { return b.Connections == 2*a.Connections },
		},
		"a slow disk makes larger groups": {
			func(l *Load, s *Site) { l.TTL, s.Fsync = time.Minute, 100*time.Millisecond },
			func(a, b Plan) bool { return a.Grouping.calls == 1 && b.Grouping.calls > 5 },
		},
		"cancel saves the inner listener": {
			func(l *Load, s *Site) { l.ClientAbort = "cancel" },
			func(a, b Plan) bool { return b.ProxyCores < a.ProxyCores },
		},
	} {
		l, s := DefaultLoad, DefaultSite
		c.change(&l, &s)
		if b := Calculate(l, s); !c.more(base, b) {
			t.Errorf("%s: from %+v to %+v", name, base, b)
		}
	}
}

// TestPlanFits: no resource of a shard is used beyond what it has, for any load.
func TestPlanFits(t *testing.T) {
	for _, rate := range []float64{0.001, 1, 1e3, 1e5, 1e6, 1e8} {
		for _, ttl := range []time.Duration{time.Second, time.Hour, 30 * 24 * time.Hour} {
			for _, feed := range []bool{false, true} {
				l, s := DefaultLoad, DefaultSite
				l.Rate, l.TTL, s.Regions, s.Feed, s.JobBytes = rate, ttl, 5, feed, 5e9
				p := Calculate(l, s)
				one := predict(l, p.Grouping)
				cores := p.Rate / float64(p.Shards) * one.managerMicros / 1e6
				if p.MemoryBytes > s.ShardMemory*usable*1.001 || p.DiskBytes > s.ShardDisk*usable*1.001 || p.Entries/float64(p.Shards) > maxEntries || cores > s.ShardCores*usable*1.001 || p.Rate/float64(p.Shards) > shardRate {
					t.Errorf("%v keys/s for %v: a shard takes %.3g bytes of memory, %.3g of disk and %.3g cores: %+v", rate, ttl, p.MemoryBytes, p.DiskBytes, cores, p)
				}
				if p.ProxyCores > float64(p.Workers)*usable*1.001 {
					t.Errorf("%v keys/s: %d workers for %.3g cores", rate, p.Workers, p.ProxyCores)
				}
			}
		}
	}
}

// TestScalePageShowsWhatTheProgramPrints: docs/scale.md quotes the program.
func TestScalePageShowsWhatTheProgramPrints(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "scale.md"))
	if err != nil {
		t.Fatal(err)
	}
	quoted := 0
	for block := range strings.SplitSeq(string(page), "```") {
		_, block, _ = strings.Cut(block, "\n") // the language
		command, printed, _ := strings.Cut(block, "\n")
		args, ok := strings.CutPrefix(command, "$ go run ./examples/capacity")
		if !ok || strings.Contains(args, "--measure") {
			continue
		}
		quoted++
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &stdout, &stderr); code != 0 || stdout.String() != printed {
			t.Errorf("%s: exit code %d, %s\nprints:\n%s\nbut docs/scale.md has:\n%s", command, code, &stderr, &stdout, printed)
		}
	}
	if quoted < 2 {
		t.Errorf("docs/scale.md quotes %d runs, not 2 or more", quoted)
	}
}

func TestRefusesWrongCommandLines(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--rate 0", "--rate=0: must be 0.001 to 1e+08"},
		{"--ttl 1ms", "--ttl in seconds=0.001: must be 1 to"},
		{"--client-abort never", `--client-abort="never": must be one of ["continue" "cancel"]`},
		{"--measure --keys 3", "--keys=3: must be 100 to 50000"},
		{"--shard-memory 12", "--shard-memory=12: must be 2e+09 to 1e+13"},
		{"--shard-disk 13e9 --job-bytes 4e9", "--job-bytes=4e+09: must be 0 to 3e+09"},
		{"--shard-memory 10e9 --cache-bytes 2e9", "--cache-bytes=2e+09: must be 1.048576e+06 to 1.9333333333333333e+09"},
		{"more", `unexpected argument "more"`},
		{"--rate NaN", "--rate=NaN: must be"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(c.args), &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("%s: exit code %d, %q %q, not 2 and %q", c.args, code, &stdout, &stderr, c.want)
		}
	}
}
