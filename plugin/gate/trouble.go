package gate

import "time"

// What the log says about calls that the manager did not answer.

const (
	// logPeriod is the least time between two lines about failed calls, also when calls
	// succeed in between.
	logPeriod = 10 * time.Second
	// maxQuoted bounds what is quoted of an answer.
	maxQuoted = 160
)

// trouble is what was said and what was not.
type trouble struct {
	logged int64 // when the last line about a failure was written; 0: never
	unsaid int   // failures since then
	told   bool  // of a failure, and not yet of its end
}

// refusals say why no call was made.
var refusals = [...]string{
	CallRefused:   "refused at once: no healthy host, or a circuit breaker is full",
	CallNoCluster: "the proxy knows no such cluster; manager.cluster must name one that it has",
}

// foreign describes an answer that is not the manager's. The proxy makes one by itself where
// there is none: 504 after the timeout, 503 when the connection failed or was reset.
func foreign(status string, body []byte) string {
	switch status {
	case "":
		return "the answer broke off"
	case "504":
		status = "timeout, status 504"
	default:
		status = "not the manager's answer, status " + status
	}
	if len(body) > 0 {
		for i, c := range body {
			if c < 0x20 || c > 0x7e || c == '"' {
				body[i] = '?'
			}
		}
		status += " \"" + string(body) + "\""
	}
	return status
}

// complain tells of a call that failed, but not of each.
func (l *ledger) complain(c *call, r *reply) {
	t, now := &l.trouble, l.p.host.Now()
	if t.logged != 0 && now >= t.logged && now-t.logged < int64(logPeriod) {
		t.unsaid++
		return
	}
	line := "oncegate: a call to cluster \"" + l.p.config.Manager.Cluster + "\" (" + c.kind.path() + ") failed: " + r.why
	if t.unsaid > 0 {
		line += "; " + decimal(int64(t.unsaid)) + " more since the last such line"
	}
	t.logged, t.unsaid, t.told = now, 0, true
	l.p.host.Log(LevelWarn, line)
}

// answers tells, after a line about a failure, that calls succeed again.
func (l *ledger) answers() {
	if l.trouble.told {
		l.trouble.told = false
		l.p.host.Log(LevelInfo, "oncegate: cluster \""+l.p.config.Manager.Cluster+"\" answers again")
	}
}
