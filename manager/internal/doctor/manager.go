package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
)

const (
	checkManager = "manager: answers"
	checkReady   = "manager: ready"
	checkRole    = "manager: role"
	checkClock   = "manager: clock"
	checkKept    = "manager: store's clock"
	checkWindow  = "manager: window"
	checkTTL     = "manager: TTL"
	checkForgot  = "manager: quarantine"
	checkUnknown = "manager: unknown outcomes"
	checkFenced  = "manager: fenced outcomes"
	checkShard   = "manager: shard"
	checkDurable = "manager: durability"
	checkSizes   = "manager: sizes"
	checkLedger  = "manager: ledger"
	checkAlarms  = "manager: alarms"
)

const (
	// slowAnswer is how long a manager's shortest answer may take before each new key is felt to be slow.
	slowAnswer = 50 * time.Millisecond
	// moreAnswers is how often a manager whose answer took longer is asked again.
	moreAnswers = 3
	// clockLimit is the difference of clocks that is worth a word. Nothing in the ledger compares clocks of two machines,
	// but certificates, logs and traces do.
	clockLimit = 2 * time.Second
	// keptClock is the metric of a clock that managers keep themselves.
	keptClock = "oncegate_store_clock_behind_seconds"
	// fullAt is the part of the window from which on a burst may fill it.
	fullAt = 0.7
)

func (t Target) manager(ctx context.Context, r *report, gates []gate) {
	ready, err := t.get(ctx, t.Manager+"/readyz", "")
	if err != nil {
		r.fail(checkManager, oneLine(err.Error()), "start the manager, or correct --manager, the network or the firewall between here and there")
		return
	}
	for range moreAnswers { // a machine that was busy for a moment is not far away
		if ready.took <= slowAnswer {
			break
		}
		if again, err := t.get(ctx, t.Manager+"/readyz", ""); err == nil && again.took < ready.took {
			ready = again
		}
	}
	version := ready.header.Get("Oncegate-Manager")
	switch {
	case version == "":
		r.fail(checkManager, "the answer has no header oncegate-manager", "correct --manager: another program listens there")
		return
	case ready.took > slowAnswer:
		r.warn(checkManager, fmt.Sprintf("version %s, %s", version, ready.took.Round(time.Millisecond)), "bring gates and managers closer: each new key waits for two such calls")
	default:
		r.ok(checkManager, "version %s, %s", version, ready.took.Round(10*time.Microsecond))
	}
	if ready.status == http.StatusOK {
		r.ok(checkReady, "ready")
	} else {
		r.fail(checkReady, fmt.Sprintf("status %d: %s", ready.status, oneLine(string(ready.body))), "see the manager's log: it starts, stops, or its store failed")
	}
	t.clock(r, ready)

	before, ok := t.stats(ctx, r)
	if !ok {
		return
	}
	if sleep(ctx, t.Sample) != nil {
		return
	}
	after, ok := t.stats(ctx, nil)
	if !ok {
		r.warn(checkWindow, "the manager stopped answering", "run the command again")
		return
	}
	t.window(r, before, after, gates)
	quarantined(r, after)
	settled(r, after)
	shards(r, after, gates)
	durabilities(r, after, gates)
	answerSizes(r, after, gates)
	sameLedger(r, after, gates)
	t.centres(ctx, r)
	t.jobs(ctx, r)
	t.metrics(ctx, r)
}

func (t Target) clock(r *report, a answer) {
	there, err := http.ParseTime(a.header.Get("Date"))
	if err != nil {
		r.warn(checkClock, "the answer has no date", "look whether a proxy between here and the manager removes it")
		return
	}
	// The header has whole seconds.
	if off := time.Since(there.Add(500 * time.Millisecond)); off.Abs() > clockLimit+a.took {
		r.warn(checkClock, fmt.Sprintf("differs from this machine's by %s", off.Round(time.Second)), "synchronize the clocks: the ledger does not need it, certificates, logs and traces do")
		return
	}
	r.ok(checkClock, "agrees with this machine's")
}

// stats reads the ledger's statistics. With a report it says what the token may do.
func (t Target) stats(ctx context.Context, r *report) (s schema.LedgerStats, ok bool) {
	a, err := t.get(ctx, t.Manager+"/v1/ledger/stats", t.Token)
	if err == nil && a.status == http.StatusOK {
		err = schema.Unmarshal(a.body, &s)
	}
	if r == nil {
		return s, err == nil && a.status == http.StatusOK
	}
	switch {
	case err != nil:
		r.fail(checkRole, oneLine(err.Error()), "run the command again, and see the manager's log")
	case a.status == http.StatusUnauthorized:
		r.fail(checkRole, "the manager asks for a credential and does not know this one", "give --token-file (and --cert-file with --client-ca) a credential of the manager's --auth-token-file")
	case a.status == http.StatusForbidden:
		r.warn(checkRole, "this token may not read statistics, so the window, outcomes and the shard are not checked", "use a token with the word operator")
	case a.status != http.StatusOK:
		r.fail(checkRole, fmt.Sprintf("statistics: status %d: %s", a.status, oneLine(string(a.body))), "see the manager's log")
	default:
		r.ok(checkRole, "may read statistics")
		return s, true
	}
	return s, false
}

// window compares the rate of new keys with what the window holds.
func (t Target) window(r *report, before, after schema.LedgerStats, gates []gate) {
	newKeys := (float64(after.Calls["reserve"]["done"]) - float64(before.Calls["reserve"]["done"])) / t.Sample.Seconds()
	n := after.Entries
	full := float64(n.Pending+n.Committed+n.Rejected+n.Unknown) / float64(max(after.MaxEntries, 1))
	if after.Bytes != nil && after.MaxBytes != nil {
		full = max(full, float64(*after.Bytes)/float64(max(*after.MaxBytes, 1)))
	}
	refused := after.Calls["reserve"]["full"] + after.Calls["reserve"]["over_share"]
	found := fmt.Sprintf("%.0f %% full, %.0f new keys/s", 100*full, newKeys)
	managers := after.CommittedTTL
	shortest, ttl := askedTTLs(gates, managers)
	found += fmt.Sprintf(", remembered for %s", ttl)
	if shortest < managers {
		r.warn(checkTTL, fmt.Sprintf("a gate asks for %s (committed_ttl_seconds), and the manager's --committed-ttl-seconds is %s: the gate's time counts", shortest, managers),
			"remove committed_ttl_seconds from the gate's configuration, unless its routes are meant to be forgotten earlier: a retry after that time runs again")
	} else {
		r.ok(checkTTL, "answers are remembered for %s", shortest)
	}
	grow := "raise --max-bytes and --max-entries, shorten --committed-ttl-seconds, or add a shard"
	switch {
	case refused > before.Calls["reserve"]["full"]+before.Calls["reserve"]["over_share"]:
		r.fail(checkWindow, found+"; new keys are refused now", grow)
	case full >= fullAt:
		r.warn(checkWindow, found, grow)
	case newKeys*ttl.Seconds() > fullAt*float64(after.MaxEntries):
		r.warn(checkWindow, fmt.Sprintf("%s: that makes %.0f entries, and the window holds %d", found, newKeys*ttl.Seconds(), after.MaxEntries), grow)
	case refused > 0:
		r.warn(checkWindow, fmt.Sprintf("%s; %d new keys were refused since the start", found, refused), grow)
	default:
		r.ok(checkWindow, "%s", found)
	}
}

// quarantined reports the quarantine after a restore.
func quarantined(r *report, s schema.LedgerStats) {
	if left := s.QuarantineFor; left > 0 {
		r.fail(checkForgot, fmt.Sprintf("the ledger may have forgotten keys: new ones get 503 for another %s", left.Round(time.Second)),
			"oncegate ledger quarantine says why; wait, or end it with oncegate ledger quarantine end if no client retries an older request")
		return
	}
	r.ok(checkForgot, "none")
}

// settled looks at outcomes that an operator must settle.
func settled(r *report, s schema.LedgerStats) {
	if n := int64(s.Entries.Unknown); n > 0 {
		r.warn(checkUnknown, plural(n, "1 key has an unknown outcome, and its retries get 409", "%d keys have an unknown outcome, and their retries get 409"), "oncegate ledger list --state unknown, then oncegate ledger resolve")
	} else {
		r.ok(checkUnknown, "none")
	}
	// Releases and renewals are left out: a release records no work, and a renewal is followed by an outcome.
	var fenced int64
	var byOp []string
	for _, op := range []string{"commit", "reject", "unknown"} {
		if n := int64(s.Calls[op]["fenced"]); n > 0 {
			fenced += n
			byOp = append(byOp, fmt.Sprintf("%d %s", n, op))
		}
	}
	if fenced == 0 {
		r.ok(checkFenced, "none")
		return
	}
	found := plural(fenced, "1 outcome was refused because another attempt had the key", "%d outcomes were refused because another attempt had the key")
	r.warn(checkFenced, found+": "+strings.Join(byOp, ", "),
		"make pending_ttl_seconds longer than the upstream's longest work, and check at the upstream whether work ran twice")
}

// plural returns one for 1, and else many with the number.
func plural(n int64, one, many string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(many, n)
}

// shards compares the manager's name with what the gates call it.
func shards(r *report, s schema.LedgerStats, gates []gate) {
	var names []string
	for _, g := range gates {
		names = append(names, g.shards()...)
	}
	switch {
	case len(names) == 0 && s.Name == "":
		r.ok(checkShard, "one manager without a name")
	case len(names) == 0:
		r.ok(checkShard, "%s", s.Name)
	case s.Name == "":
		r.warn(checkShard, "the gate has a list of shards, and this manager takes any name", "start it with --shard NAME, so that a wrong cluster cannot run work twice")
	case !slices.Contains(names, s.Name):
		r.fail(checkShard, fmt.Sprintf("this manager is %q, and the gate's list has %q", s.Name, names), "correct manager.shards of the gate, or --shard of the manager")
	default:
		r.ok(checkShard, "%s, as in the gate's list", s.Name)
	}
}

// durabilities compares what the gates ask for with what the manager can give.
func durabilities(r *report, s schema.LedgerStats, gates []gate) {
	asked := map[string]bool{}
	for _, g := range gates {
		for _, rule := range g.rules() {
			if d := rule.text("durability"); d != "" && d != "local" {
				asked[d] = true
			}
		}
	}
	for _, d := range slices.Sorted(maps.Keys(asked)) {
		if slices.Contains(s.Durabilities, d) {
			r.ok(checkDurable, "can give %s, as a gate asks", oneLine(d))
			continue
		}
		do := "region needs managers with --store etcd, or postgres with --store-require-sync-standbys"
		if d == "global" {
			do = "global needs managers with --origin and --peer"
		}
		r.fail(checkDurable, fmt.Sprintf("a gate asks for durability %q, and this manager can give %s: such requests get 503", oneLine(d), strings.Join(s.Durabilities, " and ")),
			do+`; or set "durability": "local" in the gate`)
	}
}

// defaultAnswer is the default of max_response_body_bytes.
const defaultAnswer = 512 << 10

// answerSizes compares the largest answers that the gates record with those that the manager does.
func answerSizes(r *report, s schema.LedgerStats, gates []gate) {
	var largest float64
	for _, g := range gates {
		for _, rule := range g.rules() {
			if rule.asksManager() {
				largest = max(largest, rule.number("max_response_body_bytes", defaultAnswer))
			}
		}
	}
	recorded := float64(s.MaxResultBytes)
	switch {
	case largest == 0:
	case largest >= recorded:
		r.warn(checkSizes, fmt.Sprintf("a gate records answers of up to %.0f bytes (max_response_body_bytes), and the manager less than %.0f (--max-result-bytes): retries of larger ones get 410", largest, recorded),
			"raise --max-result-bytes, which has room for headers as well, or lower max_response_body_bytes")
	default:
		r.ok(checkSizes, "the manager records those of up to %.0f bytes, and a gate at most %.0f", recorded, largest)
	}
}

// sameLedger checks whether the manager is one of those that the gates call.
func sameLedger(r *report, s schema.LedgerStats, gates []gate) {
	var called []string
	for _, g := range gates {
		called = append(called, g.ledgers...)
	}
	switch {
	case len(called) == 0 || s.LedgerID == "":
	case slices.Contains(called, s.LedgerID):
		r.ok(checkLedger, "the gates' clusters lead to it")
	default:
		r.warn(checkLedger, fmt.Sprintf("the gates' clusters lead to other ledgers (%s) than this manager's (%s)", oneLine(strings.Join(called, ", ")), oneLine(s.LedgerID)),
			"correct --manager, or the endpoints of the clusters")
	}
}

// alarms are metrics of the manager that are 0 when all is well, with what a larger value means.
var alarms = []struct {
	metric    string
	level     Level
	found, do string
}{
	{"oncegate_ledger_answers_dropped_total", Warn, "answers were recorded without their body since the window was full, and their retries get 410", "raise --max-bytes"},
	{"oncegate_ledger_sweep_errors_total", Warn, "what has expired could not be removed", "see the manager's log"},
	{"oncegate_unreadable_records", Warn, "records cannot be read, and their keys get 503", "oncegate unreadable list"},
	{"oncegate_encryption_failures_total", Fail, "values could not be decrypted", "look whether --encryption-key-file has all keys that were ever used"},
	{"oncegate_http_wrong_shard_total", Fail, "a gate calls this manager by another shard's name", "correct the clusters of the gate's shards"},
	{"oncegate_http_bodies_refused_total", Warn, "requests were refused because their bodies had no room in memory", "raise --max-body-memory-bytes"},
	{"oncegate_logs_failed", Fail, "logs cannot be read", "oncegate logs list"},
	{"oncegate_wal_no_space", Fail, "the disk is full, and new keys get 503", "make room, or give the manager a larger disk"},
	{"oncegate_state_write_errors_total", Warn, "changes could not be moved from memory to the state on disk", "see the manager's log, and the space on its disk"},
	{"oncegate_feed_conflicts_unkept_total", Fail, "keys ran in two data centres and are not in the list of conflicts, which is full", "the log lines with \"listed\":false, and raise --max-bytes and --max-entries"},
	{"oncegate_peer_refused_total", Fail, "outcomes of a peer were refused, because they are malformed or its clock is wrong", "oncegate peers status, and the manager's log"},
	{"oncegate_home_refuses", Fail, "the data centre is the home of no new global keys, because lists of data centres differ or a peer has not sent its own", "oncegate peers status, and the same --origin and --peer names everywhere"},
	{"oncegate_quarantine_remaining_seconds", Fail, "the ledger may have forgotten keys: new keys or ids of logs get 503", "oncegate ledger quarantine says why; wait, or end it with oncegate ledger quarantine end if no client retries an older request"},
	{"oncegate_ship_failing_seconds", Warn, "shipping to object storage fails", "see the manager's log: the store, its credentials, or another manager that ships to the same destination"},
}

// metrics looks at the manager's metrics.
func (t Target) metrics(ctx context.Context, r *report) {
	if t.Metrics == "" {
		return
	}
	body, err := t.getOK(ctx, t.Metrics+"/metrics")
	if err != nil {
		r.warn(checkAlarms, oneLine(err.Error()), "correct --metrics, the URL of the manager's --admin listener")
		return
	}
	found := parseMetrics(string(body))
	if behind := time.Duration(found[keptClock] * float64(time.Second)); behind.Abs() > clockLimit {
		r.warn(checkKept, fmt.Sprintf("the time that the managers keep in etcd is %s behind the manager's wall clock (%s)", behind.Round(time.Second), keptClock),
			"nothing, if managers and etcd were off for that long: jobs run by the wall clock, TTLs and leases continue where they stopped, and the difference shrinks by 43 s a day; otherwise synchronize the managers' clocks")
	}
	before := len(r.findings)
	for _, a := range alarms {
		if v := found[a.metric]; v > 0 {
			r.findings = append(r.findings, Finding{Level: a.level, Check: checkAlarms, Found: fmt.Sprintf("%s (%s %g)", a.found, a.metric, v), Do: a.do})
		}
	}
	if have, need := found["oncegate_store_sync_standbys"], found["oncegate_store_sync_standbys_required"]; have < need {
		r.fail(checkAlarms, fmt.Sprintf("%g synchronous standbys are connected to Postgres, and --store-require-sync-standbys asks for %g", have, need),
			"bring the standbys back: see pg_stat_replication on the primary")
	}
	if term, ships := found["oncegate_ship_lease_term"]; ships && term == 0 {
		r.fail(checkAlarms, "this manager ships nothing, because it does not hold the lease of its destination (oncegate_ship_lease_term 0)",
			"oncegate ship status says who holds it: stop a second manager that ships to the same destination, such as one on a copy of the data directory")
	}
	r.okUnless(before, checkAlarms, "none among %d metrics", len(found))
}

// parseMetrics adds up the samples of each name.
func parseMetrics(text string) map[string]float64 {
	sums := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		if i := strings.IndexByte(line, '{'); i >= 0 && i < len(name) {
			name = line[:i]
			rest = line[strings.LastIndexByte(line, '}')+1:]
		}
		if v, err := strconv.ParseFloat(strings.Fields(rest + " x")[0], 64); err == nil {
			sums[name] += v
		}
	}
	return sums
}
