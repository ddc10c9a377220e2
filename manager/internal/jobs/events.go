package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/internal/store"
)

func loadSubscribers(tx store.Tx, event string) ([]string, error) {
	b, err := tx.Get(colSubs, event)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeNames(colSubs, event, b, MaxSubscribers)
}

// Subscribe makes every later send of the event enqueue a job of the function.
// Subscribing twice is no error; a *FieldError says that the event has
// MaxSubscribers already.
func (q *Queue) Subscribe(ctx context.Context, event, function string) error {
	if err := first(CheckName("event", event), CheckName("function", function)); err != nil {
		return err
	}
	return q.store.Update(ctx, func(tx store.Tx) error {
		names, err := loadSubscribers(tx, event)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(names, function)
		switch {
		case found:
			return nil
		case len(names) >= MaxSubscribers:
			return invalid("function", function, "at most "+strconv.Itoa(MaxSubscribers)+" subscribers of one event")
		}
		return tx.Put(colSubs, event, encodeNames(slices.Insert(names, i, function)))
	})
}

// Unsubscribe ends a subscription; jobs that are enqueued already stay. A
// subscription that is not there is a *NotFoundError.
func (q *Queue) Unsubscribe(ctx context.Context, event, function string) error {
	if err := first(CheckName("event", event), CheckName("function", function)); err != nil {
		return err
	}
	return q.store.Update(ctx, func(tx store.Tx) error {
		names, err := loadSubscribers(tx, event)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(names, function)
		if !found {
			return &NotFoundError{Kind: "subscription", ID: event + "/" + function}
		}
		if len(names) == 1 {
			return tx.Delete(colSubs, event)
		}
		return tx.Put(colSubs, event, encodeNames(slices.Delete(names, i, i+1)))
	})
}

// Subscribers lists the functions subscribed to an event, by name.
func (q *Queue) Subscribers(ctx context.Context, event string) ([]string, error) {
	if err := CheckName("event", event); err != nil {
		return nil, err
	}
	var names []string
	err := q.store.View(ctx, func(tx store.Tx) error {
		var err error
		names, err = loadSubscribers(tx, event)
		return err
	})
	return names, err
}

// Event describes one send of a named event.
type Event struct {
	Name string
	// Payload of every job: one JSON value; null when empty. Its size times the
	// number of subscribers is bounded by MaxEventBytes.
	Payload []byte
	// Key, when set, makes a second send with it within Options.EventKeyTTL
	// enqueue nothing. Up to MaxKeyBytes visible ASCII characters, for one
	// event name.
	Key string
	// Priority, MaxAttempts and WALLocations of every job, as in Submission.
	Priority     int
	MaxAttempts  int
	WALLocations WALLocations
}

// EventOutcome is the answer to a send.
type EventOutcome struct {
	// Jobs are those that the event enqueued, one per subscriber. Of an earlier
	// send they are as they are now, without the ones that retention removed and
	// the ones that cannot be read.
	Jobs []Job
	// IDs are the ids of all of them.
	IDs []string
	// Deduplicated: an earlier send with the key enqueued them.
	Deduplicated bool
}

// PreparedEvent is a checked event, ready for SendTx.
type PreparedEvent struct {
	event Event
	base  string // the jobs' ids derive from it
}

// PrepareEvent checks an event and fills in its defaults. Like Prepare it must
// not be called inside an update function.
func (q *Queue) PrepareEvent(e Event) (*PreparedEvent, error) {
	if len(e.Payload) == 0 {
		e.Payload = []byte("null")
	}
	if e.MaxAttempts == 0 {
		e.MaxAttempts = q.opt.MaxAttempts
	}
	err := first(
		CheckName("event", e.Name),
		checkJSON("payload", e.Payload, MaxPayloadBytes),
		checkVisible("key", e.Key, 0, MaxKeyBytes),
		checkRange("priority", e.Priority, MinPriority, MaxPriority),
		checkRange("max_attempts", e.MaxAttempts, 1, MaxAttempts),
		e.WALLocations.check(),
	)
	if err != nil {
		return nil, err
	}
	return &PreparedEvent{event: e, base: q.ids.next()}, nil
}

// Send enqueues one job per subscriber of the event, all or none. Without
// subscribers that is no job at all, and no error.
func (q *Queue) Send(ctx context.Context, e Event) (EventOutcome, error) {
	p, err := q.PrepareEvent(e)
	if err != nil {
		return EventOutcome{}, err
	}
	var out EventOutcome
	err = q.store.Update(ctx, func(tx store.Tx) error {
		var err error
		out, err = q.SendTx(tx, p)
		return err
	})
	if err != nil {
		return EventOutcome{}, err
	}
	q.CommittedEvent(out)
	return out, nil
}

// CommittedEvent tells the queue that the transaction of a SendTx succeeded.
func (q *Queue) CommittedEvent(out EventOutcome) {
	if !out.Deduplicated {
		q.stats.enqueued.Add(int64(len(out.Jobs)))
	}
}

// SendTx is Send inside the caller's transaction. When it returns an error of
// this package it has written nothing.
func (q *Queue) SendTx(tx store.Tx, p *PreparedEvent) (EventOutcome, error) {
	at := now(tx)
	e := &p.event
	sendKey := e.Name + "/" + e.Key // names contain no slash
	if e.Key != "" {
		s, err := loadSend(tx, sendKey)
		if err != nil {
			return EventOutcome{}, err
		}
		if s != nil && s.until.After(at) {
			return q.outcomeOf(tx, s)
		}
	}
	functions, err := loadSubscribers(tx, e.Name)
	if err != nil {
		return EventOutcome{}, err
	}
	if size := len(e.Payload) * len(functions); size > MaxEventBytes {
		return EventOutcome{}, &FieldError{Field: "payload", TooLarge: true,
			Value:   fmt.Sprintf("%d bytes for %d subscribers", len(e.Payload), len(functions)),
			Allowed: fmt.Sprintf("at most %d bytes in all jobs of one event", MaxEventBytes)}
	}
	out := EventOutcome{}
	for i, f := range functions {
		job, err := q.EnqueueTx(tx, &Prepared{
			id:    p.base + "~e" + strconv.Itoa(i),
			event: e.Name,
			sub: Submission{
				Function: f, Payload: e.Payload, Priority: e.Priority,
				MaxAttempts: e.MaxAttempts, WALLocations: e.WALLocations,
			},
		})
		if err != nil {
			return EventOutcome{}, err
		}
		out.Jobs = append(out.Jobs, job.Job)
		out.IDs = append(out.IDs, job.Job.ID)
	}
	if e.Key == "" {
		return out, nil
	}
	s := send{until: at.Add(q.opt.EventKeyTTL), ids: out.IDs}
	return out, s.put(tx, sendKey)
}

// send is the record of a keyed event.
type send struct {
	until time.Time
	ids   []string
}

const sendVersion = 1

func (s *send) put(tx store.Tx, key string) error {
	b := appendStamp([]byte{sendVersion}, s.until)
	for _, id := range s.ids {
		b = appendString(b, id)
	}
	return tx.Put(colSends, key, b, store.Entry{Index: idxExpiry, SortKey: timeKey(s.until)})
}

func loadSend(tx store.Tx, key string) (*send, error) {
	b, err := tx.Get(colSends, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeSend(key, b)
}

func decodeSend(key string, b []byte) (*send, error) {
	d := decoder{b: b}
	d.version(sendVersion)
	s := &send{until: d.stamp()}
	for len(d.b) > 0 && len(s.ids) <= MaxSubscribers {
		id := d.string()
		if d.err == nil && CheckID("", id) != nil {
			d.fail()
		}
		s.ids = append(s.ids, id)
	}
	if len(s.ids) > MaxSubscribers {
		d.fail()
	}
	if d.err != nil {
		return nil, unreadable(colSends, key, "%v", d.err)
	}
	return s, nil
}

// outcomeOf is the answer to a repeated send.
func (q *Queue) outcomeOf(tx store.Tx, s *send) (EventOutcome, error) {
	out := EventOutcome{IDs: s.ids, Deduplicated: true}
	for _, id := range s.ids {
		r, err := load(tx, id)
		if err == nil && r != nil {
			err = r.fetch(tx)
		}
		if q.opt.Unreadable.Met(err) {
			continue
		}
		if err != nil {
			return EventOutcome{}, err
		}
		if r != nil {
			out.Jobs = append(out.Jobs, r.job())
		}
	}
	return out, nil
}
