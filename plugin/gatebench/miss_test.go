package gatebench

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/hostsim"
)

// hostCall is a host call of a miss: a request whose key is new, which is
// reserved, executed upstream and committed.
type hostCall struct {
	call        string // with its map, buffer or shared-data key
	headersMode int    // how many there are in each mode
	bodyMode    int
	why         string
}

// missCalls are all host calls of a miss, and why each is made.
var missCalls = []hostCall{
	// Which request it is.
	{"get_header_map_value :method", 1, 1, "most requests are not for the gate, and this alone shows it GETs"},
	{"get_header_map_pairs request_headers", 1, 1, "path, key, scope and fingerprint; one call instead of one for each"},
	{"get_property request.total_size", 0, 1, "until a VM has seen its first body: whether the proxy shows bodies while it holds the headers"},
	{"get_property request.protocol", 1, 0, "over HTTP/2 a reply waits for the request's end, which only body callbacks show"},
	{"get_buffer_bytes request_body", 0, 1, "the body is part of the fingerprint"},
	// The entry in the cache.
	{"get_shared_data bucket", 2, 2, "the look that finds nothing, which the reservation replaces; the read that the outcome replaces"},
	{"set_shared_data bucket", 2, 2, "the reservation and the outcome, compare-and-set"},
	{"get_shared_data region", 1, 1, "whether the region of the bucket has room for the answer"},
	{"set_shared_data region", 1, 1, "and the bucket's share of it, compare-and-set"},
	{"set_shared_data scratch", 2, 2, "creating a bucket, and here also its region, needs a CAS number that it cannot have: shown by a write here"},
	{"get_shared_data scratch", 2, 2, "and read back"},
	{"set_shared_data answer", 1, 1, "the recorded answer, before the bucket speaks of it"},
	// The manager. Its connection belongs to the plugin context.
	{"enqueue_shared_queue", 1, 1, "asks for the callback that opens the connection; in the first miss of a VM only"},
	{"dequeue_shared_queue", 2, 2, "takes that message; the second look makes sure that no other is left"},
	{"grpc_stream", 1, 1, "the connection; in the first miss of a VM only"},
	{"get_shared_data mark", 2, 2, "what the other VMs remember of the ledger, and its CAS number; in the first miss of a VM only"},
	{"set_shared_data mark", 1, 1, "which ledger answered; in the first miss of a VM only"},
	{"grpc_send", 2, 2, "reserve and commit"},
	{"get_buffer_bytes grpc_message", 2, 2, "the manager's replies"},
	{"set_effective_context", 4, 4, "for the commit to the plugin and back to the stream, for each reply to the stream that it is for"},
	// The way on.
	{"continue_stream", 2, 2, "the request continues when it is reserved, the answer when it is committed"},
	{"get_property response.code_details", 1, 1, "upstream's answers are recorded, the proxy's are not"},
	{"get_header_map_pairs response_headers", 1, 1, "status and headers of the recorded answer"},
	{"replace_header_map_value response_headers", 1, 1, "Idempotency-Status"},
	{"get_buffer_bytes response_body", 1, 1, "body of the recorded answer"},
	{"set_property oncegate.status", 1, 1, "what became of the request, for access logs; once, at its end"},
	// Numbers.
	{"current_time", 7, 8, "arrival (in body mode of the headers and of the end), the connection, and when each call was sent and answered: expiry, durations"},
	{"increment_metric", 3, 3, "a miss, a committed outcome; a connection, in the first miss of a VM only"},
	{"record_metric", 2, 2, "duration of each call"},
}

// call matches a line of a transcript: a thread's name and an indented call.
var call = regexp.MustCompile(`^worker-0   (\w+)\(([^,)]*)(?:, ([^,)]*))?`)

// kindOf names a call as missCalls does.
func kindOf(line string) (string, bool) {
	m := call.FindStringSubmatch(line)
	if m == nil {
		return "", false
	}
	name, first := m[1], m[2]
	switch {
	case strings.HasSuffix(name, "_shared_data"):
		switch dots := strings.Count(first, "."); {
		case dots == 1:
			return name + " scratch", true
		case strings.Contains(first, ".r."):
			return name + " region", true
		case strings.Contains(first, ".l."):
			return name + " mark", true
		case dots == 2:
			return name + " bucket", true
		}
		return name + " answer", true
	case name == "get_header_map_value":
		return name + " " + m[3], true
	case strings.HasPrefix(name, "get_header_map"), strings.HasPrefix(name, "replace_header_map"), name == "get_buffer_bytes", strings.HasSuffix(name, "et_property"):
		return name + " " + first, true
	}
	return name, true
}

// countCalls plays one miss and counts its host calls.
func countCalls(tb testing.TB, config string) map[string]int {
	tb.Helper()
	rec := new(hostsim.Recorder)
	clock := hostsim.NewVirtualClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) // no tick on a busy machine
	r := start(tb, hostsim.Config{Guest: module(tb, gateModule), PluginConfig: []byte(config), Recorder: rec, Clock: clock})
	rec.Reset() // what starting took
	r.must(r.flow(1, 0, miss))
	if r.reached.Load() != 1 || r.ledger.calls.Load() != 2 {
		tb.Fatal("that was no miss")
	}
	counts := map[string]int{}
	for line := range strings.Lines(rec.Text("worker-0")) {
		if kind, ok := kindOf(line); ok {
			counts[kind]++
		}
	}
	return counts
}

// TestMissHostCalls: a miss makes the host calls that missCalls justifies, and no others.
func TestMissHostCalls(t *testing.T) {
	for _, mode := range []struct {
		config string
		count  func(hostCall) int
	}{
		{headersMode, func(c hostCall) int { return c.headersMode }},
		{bodyMode, func(c hostCall) int { return c.bodyMode }},
	} {
		counts := countCalls(t, mode.config)
		total := 0
		for _, c := range missCalls {
			total += counts[c.call]
			if counts[c.call] != mode.count(c) {
				t.Errorf("%s: %s is called %d times, %d are accounted for", mode.config, c.call, counts[c.call], mode.count(c))
			}
			t.Logf("%d %-42s %s", counts[c.call], c.call, c.why)
			delete(counts, c.call)
		}
		for kind, n := range counts {
			t.Errorf("%s: %s is called %d times, which no row accounts for", mode.config, kind, n)
		}
		t.Logf("%d host calls in all", total)
	}
}

// BenchmarkMiss measures a whole first request, with a ledger and an upstream that
// answer without delay. hostcalls/op counts its host calls; TestMissHostCalls -v lists them.
func BenchmarkMiss(b *testing.B) {
	for _, mode := range []struct{ name, config string }{{"headers", headersMode}, {"body", bodyMode}, {"continue", continueMode}} {
		b.Run(mode.name, func(b *testing.B) {
			calls := 0
			for _, n := range countCalls(b, mode.config) {
				calls += n
			}
			r := start(b, hostsim.Config{Guest: module(b, gateModule), PluginConfig: []byte(mode.config)})
			b.ResetTimer()
			r.must(r.flow(b.N, 0, miss))
			b.StopTimer()
			if n := r.reached.Load(); n != int64(b.N) {
				b.Fatalf("%d of %d requests reached upstream", n, b.N)
			}
			b.ReportMetric(float64(calls), "hostcalls/op")
		})
	}
}
