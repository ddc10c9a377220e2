package mem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/state"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// InspectOptions are for Verify, which only reads. The zero value of a field means its default.
type InspectOptions struct {
	// Log is about the log. Its Check gets the records of the state as well. Its Begin must be nil.
	Log wal.InspectOptions
	// State is where the state lives; default the operating system's file system.
	State pebblevfs.FS
	// Unreadable, when set, is called for records of the state that cannot be read, after the state's other records and
	// before those of the log. A record may have no such call; see StateReport.Lost.
	Unreadable func(*store.UnreadableError)
}

// Report is what Verify found.
type Report struct {
	*wal.Report
	State StateReport
	// Refusals are why Open would fail because of the state.
	Refusals []error
}

// StateReport sums up a state.
type StateReport struct {
	// InForce says that a start uses the state, if there are no Refusals. It does not when there is none, when an import
	// into it did not end, and when it does not belong to the log.
	InForce bool
	// Sequence is that of the last log record that the state has.
	Sequence uint64
	// Records are those that can be read, Lost those that cannot and for which Unreadable was not called.
	Records, Lost int
	// Bytes is the size of the files.
	Bytes int64
	// Damage is what is wrong with it. Most damage costs records, and only Refusals cost a start.
	Damage []state.Damage
}

// Refused reports whether Open would fail.
func (r *Report) Refused() bool { return r.Damaged() || len(r.Refusals) > 0 }

// Verify checks the log in dir and the state beside it as wal.Verify checks a log. It passes the records of the state, and
// then those of the log. A record of the state is a wal.Entry with the state's directory as its File, the state's
// Sequence, and a write set that puts this record at the zero time of Unix. A record of the log that the state has is
// wal.Entry.Replaced.
func Verify(ctx context.Context, dir string, opts InspectOptions) (*Report, error) {
	v := inspection{ctx: ctx, dir: path.Join(dir, StateDir), opts: opts, pass: opts.Log.Check}
	if v.pass == nil {
		v.pass = func(wal.Entry) error { return nil }
	}
	opts.Log.Begin, opts.Log.Check = v.begin, v.entry
	var err error
	if v.report.Report, err = wal.Verify(ctx, dir, opts.Log); err != nil {
		return nil, err
	}
	v.report.Complaints = append(v.complaints, v.report.Complaints...)
	if st := v.report.State; !v.report.Damaged() && st.InForce && st.Sequence > v.report.LastSequence {
		v.refuse(errAhead(v.dir, st.Sequence, v.report.LastSequence))
	}
	return &v.report, nil
}

// LostCollection has what a Repair lost, in a form that only the state reads.
const LostCollection = state.Lost

// Repair removes what is damaged in the state beside the log in dir; see state.Repair. It returns a *vfs.LockedError
// while a process has the log open, and the errors of wal.Verify and state.Repair.
func Repair(ctx context.Context, dir string) (done *state.Repaired, err error) {
	begin := func(id string, _ uint64) error {
		lock, err := wal.Lock(dir)
		if err != nil {
			return err
		}
		done, err = state.Repair(ctx, path.Join(dir, StateDir), id, nil)
		return errors.Join(err, lock.Close())
	}
	if _, err = wal.Verify(ctx, dir, wal.InspectOptions{Begin: begin}); err == nil && done == nil {
		err = fmt.Errorf("%w: the log cannot be read", state.ErrBeyondRepair)
	}
	return done, err
}

type inspection struct {
	ctx  context.Context
	dir  string // of the state
	opts InspectOptions
	pass func(wal.Entry) error

	report     Report
	complaints []wal.Complaint
	snapshot   uint64
	buf        []byte
}

func (v *inspection) refuse(err error) { v.report.Refusals = append(v.report.Refusals, err) }

// begin reads the state.
func (v *inspection) begin(id string, snapshot uint64) (err error) {
	v.snapshot = snapshot
	r, err := state.OpenReader(v.ctx, v.dir, id, v.opts.State)
	switch {
	case errors.Is(err, state.ErrNone):
		return nil
	case v.ctx.Err() != nil:
		return v.ctx.Err()
	case err != nil:
		v.refuse(err)
		return nil
	}
	defer func() {
		if e := r.Close(); err == nil {
			err = e
		}
	}()
	st := &v.report.State
	st.Sequence, st.Bytes = r.Sequence(), r.Bytes()
	if err := r.Err(); err != nil {
		if errors.Is(err, state.ErrOther) {
			err = fmt.Errorf("%w: %w", ErrState, err)
		}
		v.refuse(err)
		if errors.Is(err, ErrState) {
			st.Damage = r.Damage()
			return nil
		}
	} else if st.Sequence == 0 || st.Sequence < snapshot {
		return nil // entry says it if this is wrong
	}
	st.InForce = true
	err = r.Records(v.ctx, func(c store.Collection, key string, rec state.Record, err error) error {
		var u *store.UnreadableError
		if errors.As(err, &u) {
			if v.opts.Unreadable != nil {
				v.opts.Unreadable(u)
			}
			return nil
		}
		st.Records++
		v.buf = appendPutOf(appendHeader(v.buf[:0], time.Unix(0, 0)), c, key, rec.Value, rec.Entries)
		e := wal.Entry{File: v.dir, Sequence: st.Sequence, Body: v.buf}
		if err := v.pass(e); err != nil {
			v.complain(wal.Damage, e, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	st.Damage, st.Lost = r.Damage(), r.Lost()
	return nil
}

// complain notes an error of pass.
func (v *inspection) complain(s wal.Severity, e wal.Entry, err error) {
	v.complaints = append(v.complaints, wal.Complaint{
		Severity: s, File: e.File, Segment: e.Segment, Offset: e.Offset, Sequence: e.Sequence, Reason: "the record cannot be used: " + err.Error(),
	})
}

// entry passes a record of the log.
func (v *inspection) entry(e wal.Entry) error {
	st := &v.report.State
	if e.Segment == 0 {
		isPointer := bytes.Equal(e.Body, pointer)
		if isPointer && !st.InForce && len(v.report.Refusals) == 0 {
			v.refuse(errBehind(v.dir, v.snapshot, st.Sequence))
		}
		if isPointer || st.InForce {
			return nil
		}
		return v.pass(e)
	}
	if !st.InForce || e.Replaced || e.Sequence > st.Sequence {
		return v.pass(e)
	}
	e.Replaced = true
	if err := v.pass(e); err != nil {
		v.complain(wal.Note, e, err)
	}
	return nil
}
