package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// keyOf returns the n-th key of a shard.
func keyOf(p *Plugin, scope string, n int, name string) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		names := p.config.Manager.Shards
		if names[api.Owner(names, scope, key)] != name {
			continue
		}
		if n--; n < 0 {
			return key
		}
	}
}

// twoShards is a VM that has kept ten outcomes for a, which was away. All are due in a minute.
func twoShards(t *testing.T) (h *fakeHost, p *Plugin, key func(n int, name string) string) {
	h = newFakeHost(t)
	p = started(t, h, `{"manager":{"shards":["a","b"]},"commit_retry":{"initial_ms":60000,"max_ms":60000}}`)
	s, _ := h.open(p, 1, "any")
	s.OnRequestHeaders(true)
	h.ready(p)
	scope := s.scope.String()
	h.respond(p, h.last(), "201", granted)
	key = func(n int, name string) string { return keyOf(p, scope, n, name) }
	var streams []*Stream
	for i := range 10 {
		s, _ := h.run(p, uint32(i+10), key(i, "a"))
		streams = append(streams, s)
	}
	h.away = map[string]bool{"a": true}
	h.leave(p, "a")
	for _, s := range streams {
		h.current = s.id
		s.OnResponseHeaders(true)
		h.ready(p)
	}
	return h, p, key
}

// ask sends a request and returns how many calls that made.
func (h *fakeHost) ask(p *Plugin, id uint32, key string) int {
	before := len(h.calls)
	s, _ := h.open(p, id, key)
	s.OnRequestHeaders(true)
	h.ready(p)
	return len(h.calls) - before
}

// When a shard is back, its kept calls go there immediately, whatever the state of the others.
func TestShardIsBackWhileAnotherIsAway(t *testing.T) {
	h, p, key := twoShards(t)
	h.comeBack(p)
	h.away = map[string]bool{"b": true}
	h.leave(p, "b")
	expect(t, "calls to b", h.ask(p, 50, key(0, "b")), 0)
	before := len(h.calls)
	h.ticks(p, time.Second)
	expect(t, "before they are due", len(h.calls)-before, 0)
	h.now += int64(time.Minute)
	expect(t, "calls to b", h.ask(p, 51, key(0, "b")), 0)
	h.tick(p)
	h.ready(p)
	for n := before; n < len(h.calls); n++ {
		expect(t, "to", h.calls[n].cluster, "a")
		h.respond(p, n, "200", committed)
		expect(t, "calls to b", h.ask(p, 52, key(0, "b")), 0)
	}
	expect(t, "kept", p.calls.queued, 0)
}

// One kept call probes a shard that is down, and no other shard.
func TestOtherShardsAreNotProbed(t *testing.T) {
	h, p, key := twoShards(t)
	h.comeBack(p)
	h.ticks(p, 2*time.Second)
	expect(t, "calls", h.ask(p, 50, key(0, "b")), 1)
	expect(t, "to", h.calls[h.last()].cluster, "b")
	expect(t, "calls", h.ask(p, 51, key(11, "a")), 2)
	n := h.last() - 1
	expect(t, "first", h.calls[n].path+h.calls[n].cluster, api.PathCommit+"a")
	h.respond(p, n, "200", committed)
	expect(t, "calls", len(h.calls)-n, 2+9)
}

// The log says which of them answers again.
func TestLogNamesTheShardThatAnswersAgain(t *testing.T) {
	h, p, key := twoShards(t)
	logged := func(text string) int { return strings.Count(strings.Join(h.logs, "\n"), text) }
	expect(t, "a failed", logged(`call to cluster "a"`), 1)
	h.away = map[string]bool{"a": true, "b": true}
	h.leave(p, "b")
	h.ask(p, 50, key(0, "b"))
	h.ticks(p, lastBackoff+tickPeriod)
	expect(t, "b failed", logged(`call to cluster "b"`), 1)
	h.comeBack(p)
	h.away = map[string]bool{"a": true}
	h.ask(p, 51, key(1, "b"))
	h.respond(p, h.last(), "201", granted)
	expect(t, "b answers", logged(`cluster "b" answers again`), 1)
	expect(t, "a answers", logged(`cluster "a" answers again`), 0)
}

// Releases for one shard leave room for those of the others.
func TestReleasesOfOneShardLeavePlacesForOthers(t *testing.T) {
	h := newFakeHost(t)
	p := started(t, h, `{"manager":{"shards":["a","b"]},"commit_retry":{"max_queued":16}}`)
	for i, name := range []string{"a", "b"} {
		for n := range 20 {
			c := &call{kind: callRelease, attempt: attempt{route: p.config.Route("POST", "/"), shard: i}, deadline: h.now + int64(time.Hour)}
			p.calls.retryLater(c)
			expect(t, name, len(p.calls.shards[i].retries), min(n+1, 4))
		}
	}
}
