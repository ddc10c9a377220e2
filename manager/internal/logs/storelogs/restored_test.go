package storelogs

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// restored opens the log again, as one that was restored and has a minute of quarantine left. over ends that.
func (e *env) restored(floor uint64) (over func()) {
	var left atomic.Int64
	left.Store(int64(time.Minute))
	e.rig.opts.Restored = &restored{floor, func() time.Duration { return time.Duration(left.Load()) }}
	e.rig.restart(0)
	return func() { left.Store(0) }
}

func (e *env) outcomes(atomic bool, items ...logs.Item) []logs.Outcome {
	e.Helper()
	o, err := e.rig.Engine.Append(e.Context(), logName, items, atomic)
	if err != nil {
		e.Fatal(err)
	}
	return o
}

// quarantined says whether the error asks for patience of a minute.
func quarantined(err error) bool {
	var e *logs.Error
	return errors.As(err, &e) && e.P.Code == api.CodeQuarantine && e.P.Status == 503 && e.P.RetryAfterSeconds == 60
}

// quarantineRefuses: an id that the log does not know may be one that it forgot.
func quarantineRefuses(e *env) {
	e.make(logs.Change{})
	e.expect("1", entry("a", "x"))
	over := e.restored(0)
	byID := func(id string) error {
		_, err := e.rig.Engine.ByID(e.Context(), logName, id)
		return err
	}
	o := e.outcomes(false, entry("a", "x"), entry("b", "y"), entry("a", "other"), logs.Item{Payload: []byte("z")}, logs.Item{Derive: logs.DeriveMD5, Payload: []byte("z")})
	if !o[0].Duplicate || o[0].Number != 1 || !quarantined(o[1].Err) || codeOf(o[2].Err) != "payload-mismatch" || o[3].Number != 2 || o[3].Err != nil || !quarantined(o[4].Err) {
		e.Errorf("%+v", o)
	}
	if o := e.outcomes(true, logs.Item{Payload: []byte("z")}, entry("b", "y")); o[0].Err == nil || !quarantined(o[1].Err) {
		e.Errorf("atomic: %+v", o)
	}
	if known, unknown := byID("a"), byID("b"); known != nil || !quarantined(unknown) {
		e.Errorf("by id: %v, %v", known, unknown)
	}
	over()
	if err := byID("b"); codeOf(err) != "not-found" {
		e.Errorf("by id after the quarantine: %v", err)
	}
	e.expect("3", entry("b", "y"))
}

// quarantineOfClients: a sequence after the last one is refused, but not as a gap, for which a client would start again.
func quarantineOfClients(e *env) {
	identity, nonce := logs.Structured, ":0123456789abcdef"
	e.make(logs.Change{Identity: &identity})
	e.expect("1, 2", entry("c:0"+nonce, ""), entry("c:1"+nonce, ""))
	over := e.restored(0)
	o := e.outcomes(false, entry("c:1"+nonce, ""), entry("c:2"+nonce, ""), entry("c:5"+nonce, ""), entry("d:0"+nonce, ""))
	if !o[0].Duplicate || !quarantined(o[1].Err) || !quarantined(o[2].Err) || !quarantined(o[3].Err) {
		e.Errorf("%+v", o)
	}
	if _, err := e.rig.Engine.ByID(e.Context(), logName, "c:2"+nonce); !quarantined(err) {
		e.Errorf("by id: %v", err)
	}
	over()
	e.expect("3, sequence-gap, 4", entry("c:2"+nonce, ""), entry("c:5"+nonce, ""), entry("d:0"+nonce, ""))
}

// noEpochTwice: epochs that were given out after the point of a restore are not given out again, to writers that the log
// knows, to those that it forgot, and to those that were removed.
func noEpochTwice(e *env) {
	e.make(logs.Change{})
	for n := range uint64(3) {
		e.open(e.rig.Engine, "w", n+1)
	}
	e.open(e.rig.Engine, "removed", 1)
	if err := e.rig.Engine.RemoveWriter(e.Context(), logName, "removed"); err != nil {
		e.Fatal(err)
	}
	const floor = 1 << 40
	over := e.restored(floor)
	e.expect("1", by("w", 3, "")) // nobody opened it since then
	for _, writer := range []string{"w", "forgotten", "removed"} {
		e.open(e.rig.Engine, writer, floor+1)
		e.open(e.rig.Engine, writer, floor+2)
	}
	e.expect("fenced, fenced, 2", by("w", 4, ""), by("forgotten", 1, ""), by("w", floor+2, ""))
	over()
	e.rig.restart(0)
	e.expect("fenced, 3", by("w", 3, ""), by("w", floor+2, ""))
	e.open(e.rig.Engine, "w", floor+3)
}
