package jobs

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collections.
const (
	// colJobs: job id -> job, see record.
	colJobs store.Collection = "jobs"
	// colBlobs: job id and "/p" or "/r" -> a payload or result that is too large to be rewritten with every change of
	// its job.
	colBlobs store.Collection = "job_blobs"
	// colKeys: key -> id of the live job that holds it.
	colKeys store.Collection = "job_keys"
	// colLocks: digest of a deduplication identity -> lock.
	colLocks store.Collection = "job_locks"
	// colUsage: sums of what jobs take, see book.go.
	colUsage store.Collection = "job_usage"
	// colEvents: event -> its subscriptions.
	colEvents store.Collection = "job_events"
	// colSlots: what limits count, see functionSlots and keySlots.
	colSlots store.Collection = "job_slots"
	// colBatches: id -> Batch.
	colBatches store.Collection = "job_batches"
	// colControl: see settingsKey and settingsVersionKey.
	colControl store.Collection = "job_control"
)

// settingsKey is the record of colControl with the functions' settings. It exists only while there are any.
const settingsKey = "functions"

// settingsVersionKey is a record beside it with a digest of the settings.
const settingsVersionKey = "functions_version"

// Indexes of colJobs. Every job is in exactly one of the first six, which is the index of its state, so the length of
// each is a gauge. All but active jobs are in idxFunction, too: a claim, a heartbeat and a finish are cheaper without.
const (
	idxQueued    = "queued"    // priority, run_at, place: the order of claims
	idxKeyed     = "keyed"     // function, concurrency key, then as in queued; of queued jobs with a concurrency key
	idxScheduled = "scheduled" // run_at, place
	idxActive    = "active"    // end of the lease, function, see heldKey
	idxDone      = "done"      // finished_at, class; what retention removes
	idxDead      = "dead"      // finished_at
	idxExpires   = "expires"   // ExpiresAt; of queued and scheduled jobs that have one
	idxFunction  = "function"  // function, class, then as in the others
	idxBatch     = "batch"     // id of the batch; of jobs in a batch that have not ended
)

// allIndexes are the indexes of the states, in the order of a job's life: a count that reads one after the other counts a job
// that moves on meanwhile twice rather than not at all.
var allIndexes = []string{idxScheduled, idxQueued, idxKeyed, idxActive, idxDone, idxDead}

// idxCreated orders colBatches by CreatedAt. Those that have finished are in idxDone as well, by FinishedAt.
const idxCreated = "created"

// Indexes of colSlots: the keys of a function with waiting jobs. They are in one of the two.
const (
	idxReady   = "ready"   // function, turn
	idxBlocked = "blocked" // function; of keys with as many running jobs as they may have
)

// idxName orders colEvents by the events' names.
const idxName = "name"

// idxMost orders the functions in colUsage by their dead letters, the most first.
const idxMost = "most"

// idxExpiry orders colLocks by their end.
const idxExpiry = "expiry"

// priorityBytes is the length of the priority at the beginning of a sort key of idxQueued.
const priorityBytes = 2

// class is the letter for a job's place in idxFunction and idxDone.
type class byte

const (
	classComplete  class = 'c'
	classDead      class = 'd' // failed
	classExpired   class = 'e'
	classKeyed     class = 'k' // queued, with a concurrency key
	classQueued    class = 'q'
	classReplayed  class = 'r'
	classScheduled class = 's'
	classCancelled class = 'x'
)

// appendTime appends t so that the bytes sort in the order of the times. Times are stored in microseconds, the finest
// precision that all engines share.
func appendTime(dst []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(t.UnixMicro()))
}

func timeKey(t time.Time) string { return string(appendTime(nil, t)) }

// keyTime is the inverse of timeKey for a key that starts with a time.
func keyTime(k string) time.Time {
	if len(k) < 8 {
		return time.Time{}
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64([]byte(k[:8]))))
}

// class returns the job's place in the indexes. Active jobs have none.
func (r *record) class() class {
	switch r.State {
	case Scheduled:
		return classScheduled
	case Queued:
		if r.ConcurrencyKey != "" {
			return classKeyed
		}
		return classQueued
	case Complete:
		return classComplete
	case Cancelled:
		return classCancelled
	case Replayed:
		return classReplayed
	case Expired:
		return classExpired
	}
	return classDead
}

// entries returns the job's index entries, that of its state first.
func (r *record) entries() []store.Entry {
	var all []store.Entry
	if r.State == Active {
		all = append(all, store.Entry{Index: idxActive, SortKey: timeKey(r.Lease.Until) + r.Function + r.heldKey()})
	} else {
		all = r.waitingEntries()
	}
	if r.Batch != "" && !r.State.Terminal() {
		all = append(all, store.Entry{Index: idxBatch, SortKey: r.Batch})
	}
	return all
}

// waitingEntries are those of a job that no worker has.
func (r *record) waitingEntries() []store.Entry {
	c := r.class()
	b := make([]byte, 0, len(r.Function)+2+10)
	b = append(append(b, r.Function...), 0, byte(c))
	start := len(b)
	index := idxDone
	switch c {
	case classQueued, classKeyed:
		index = idxQueued
		b = binary.BigEndian.AppendUint16(b, uint16(MaxPriority-r.Priority))
		b = append(appendTime(b, r.RunAt), byte(r.Place))
	case classScheduled:
		index = idxScheduled
		b = append(appendTime(b, r.RunAt), byte(r.Place))
	case classDead:
		index = idxDead
		b = appendTime(b, r.FinishedAt)
	default:
		b = appendTime(b, r.FinishedAt)
	}
	whole := string(b)
	own := whole[start:]
	switch {
	case index == idxDone:
		own += string(rune(c))
	case c == classKeyed:
		index, own = idxKeyed, slotsKey(r.Function, r.ConcurrencyKey)+"\x00"+own
	}
	all := []store.Entry{{Index: index, SortKey: own}, {Index: idxFunction, SortKey: whole}}
	if !r.ExpiresAt.IsZero() && (r.State == Queued || r.State == Scheduled) {
		all = append(all, store.Entry{Index: idxExpires, SortKey: timeKey(r.ExpiresAt)})
	}
	return all
}

// at reports whether the job has this index entry.
func (r *record) at(index, sortKey string) bool {
	return slices.Contains(r.entries(), store.Entry{Index: index, SortKey: sortKey})
}

// activeFunction returns the function of a sort key of idxActive, empty if the key is damaged.
func activeFunction(sortKey string) string { return functionOf(sortKey[min(len(sortKey), 8):]) }

// heldKey is the part of a sort key of idxActive that says what the job counts for, so that this can be undone when the
// job cannot be read. It is empty for a job that counts for nothing.
func (r *record) heldKey() string {
	if r.slots == 0 {
		return ""
	}
	return "\x00" + string(rune(r.slots)) + r.ConcurrencyKey
}

// functionRange is the part of idxFunction with one function and class.
func functionRange(function string, c class) (from, to string) {
	return function + "\x00" + string(rune(c)), function + "\x00" + string(rune(c+1))
}

// functionOf returns the function of a sort key of idxFunction.
func functionOf(sortKey string) string {
	f, _, _ := strings.Cut(sortKey, "\x00")
	return f
}

// afterFunction is the first sort key after those of a function.
func afterFunction(function string) string { return function + "\x01" }

// Topics of Store.Notify.
const (
	// topicAny: some job was queued.
	topicAny = "jobs/any"
	// topicFunction + function: a job of the function was queued.
	topicFunction = "jobs/f/"
	// topicBatch + id: all jobs of the batch have ended.
	topicBatch = "jobs/batch/"
	// topicDone + id: the job became terminal.
	topicDone = "jobs/done/"
)

func notifyQueued(tx store.Tx, function string) {
	tx.Notify(topicAny)
	tx.Notify(topicFunction + function)
}

// parseCursor reads the cursor of an earlier answer.
func parseCursor(text string) (store.Cursor, error) {
	c, ok := store.ParseCursor(text)
	if !ok {
		return c, invalid("cursor", text, "the cursor of an earlier answer")
	}
	return c, nil
}
