package jobs

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Event is a name with the functions that subscribe to it.
type Event struct {
	Name string
	// Subscriptions are in the order of their functions; at least one.
	Subscriptions []Subscription
}

// Subscription makes each sent event a job of the function.
type Subscription struct {
	Function string
	Since    time.Time
}

const subscriptionsVersion = 1

func encodeSubscriptions(all []Subscription) []byte {
	b := []byte{subscriptionsVersion}
	for _, s := range all {
		b = appendStamp(codec.AppendString(b, s.Function), s.Since)
	}
	return b
}

func decodeSubscriptions(event string, b []byte) ([]Subscription, error) {
	d := decoder{codec.NewReader(b)}
	d.version(subscriptionsVersion)
	var all []Subscription
	for len(d.Rest()) > 0 && d.Err() == nil {
		s := Subscription{Function: d.String(), Since: d.stamp()}
		n := len(all)
		if d.Err() == nil && (CheckName("", s.Function) != nil || n == MaxSubscriptions || n > 0 && all[n-1].Function >= s.Function) {
			d.fail()
		}
		all = append(all, s)
	}
	if len(all) == 0 { // then there is no record
		d.fail()
	}
	if d.Err() != nil {
		return nil, unreadable(colEvents, event, "%v", d.Err())
	}
	return all, nil
}

// subscriptions returns the event's subscriptions, nil if there are none.
func subscriptions(tx store.Tx, event string) ([]Subscription, error) {
	return store.Read(tx, colEvents, event, decodeSubscriptions)
}

func eventEntries(event string) []store.Entry {
	return []store.Entry{{Index: idxName, SortKey: event}}
}

// Subscribe lets each event of this name that is sent from now on become a job of the function. It returns the
// subscription, which may have been there before. A *FieldError names the bound if the event has MaxSubscriptions, or if
// MaxEvents other events have subscriptions.
func (q *Queue) Subscribe(ctx context.Context, event, function string) (Subscription, error) {
	if err := cmp.Or(CheckName("event", event), CheckName("function", function)); err != nil {
		return Subscription{}, err
	}
	var s Subscription
	err := q.store.Update(ctx, func(tx store.Tx) error {
		all, err := subscriptions(tx, event)
		if err != nil {
			return err
		}
		i, found := searchSubscription(all, function)
		if found {
			s = all[i]
			return nil
		}
		if len(all) == MaxSubscriptions {
			return invalid("function", function, "at most "+strconv.Itoa(MaxSubscriptions)+" functions that subscribe to one event")
		}
		if len(all) == 0 {
			events, err := tx.Scan(colEvents, idxName, store.Range{Limit: MaxEvents})
			if err != nil {
				return err
			}
			if len(events) == MaxEvents {
				return invalid("event", event, "at most "+strconv.Itoa(MaxEvents)+" events with subscriptions")
			}
		}
		s = Subscription{Function: function, Since: now(tx)}
		return tx.Put(colEvents, event, encodeSubscriptions(slices.Insert(all, i, s)), eventEntries(event)...)
	})
	return s, err
}

func searchSubscription(all []Subscription, function string) (int, bool) {
	return slices.BinarySearchFunc(all, Subscription{Function: function}, Subscription.compare)
}

func (s Subscription) compare(o Subscription) int { return cmp.Compare(s.Function, o.Function) }

// Unsubscribe ends a subscription and returns it. Jobs that it has made stay. If there is none it returns one without
// Since.
func (q *Queue) Unsubscribe(ctx context.Context, event, function string) (Subscription, error) {
	if err := cmp.Or(CheckName("event", event), CheckName("function", function)); err != nil {
		return Subscription{}, err
	}
	var s Subscription
	err := q.store.Update(ctx, func(tx store.Tx) error {
		s = Subscription{Function: function}
		all, err := subscriptions(tx, event)
		if err != nil {
			return err
		}
		i, found := searchSubscription(all, function)
		if !found {
			return nil
		}
		s = all[i]
		if len(all) == 1 {
			return tx.Delete(colEvents, event)
		}
		return tx.Put(colEvents, event, encodeSubscriptions(slices.Delete(all, i, i+1)), eventEntries(event)...)
	})
	return s, err
}

// EventPage is one page of events.
type EventPage struct {
	Events []Event
	// Cursor leads to the next page; empty when there is none.
	Cursor string
}

// Events lists the events that have subscriptions by their names. limit: 1 to MaxLimit, 100 when 0.
func (q *Queue) Events(ctx context.Context, limit int, after string) (EventPage, error) {
	limit, err := PageLimit(limit)
	if err := cmp.Or(err, checkFilter("cursor", after)); err != nil {
		return EventPage{}, err
	}
	from := ""
	if after != "" {
		from = after + "\x00"
	}
	var page EventPage
	err = q.store.View(ctx, func(tx store.Tx) error {
		page = EventPage{}
		hits, err := tx.Scan(colEvents, idxName, store.Range{From: from, Limit: limit})
		if err != nil {
			return err
		}
		for _, h := range hits {
			all, err := subscriptions(tx, h.Key)
			if err != nil && !q.opt.Unreadable.Met(err) {
				return err
			}
			if len(all) > 0 {
				page.Events = append(page.Events, Event{Name: h.Key, Subscriptions: all})
			}
		}
		if len(hits) == limit {
			page.Cursor = hits[limit-1].Key
		}
		return nil
	})
	return page, err
}

// PreparedEvent is a checked event, ready for SendTx. It can be used in any number of runs of one update function, and
// only once.
type PreparedEvent struct {
	q   *Queue
	job Prepared
	ids []string // that the jobs of all runs have got, by their places
}

// PrepareEvent checks an event that is to be sent. s is what its jobs have in common; its Event is the name, and its
// Function counts for nothing. It returns a *FieldError for the first invalid field.
func (q *Queue) PrepareEvent(s Submission) (*PreparedEvent, error) {
	if err := CheckName("event", s.Event); err != nil {
		return nil, err
	}
	s.Function = s.Event // stands for those of the subscriptions, and a valid name
	p, err := q.Prepare(s)
	if err != nil {
		return nil, err
	}
	return &PreparedEvent{q: q, job: *p, ids: []string{p.id}}, nil
}

// jobs returns the submissions for the subscriptions.
func (p *PreparedEvent) jobs(all []Subscription) []*Prepared {
	out := make([]*Prepared, len(all))
	for i, s := range all {
		if i == len(p.ids) { // more functions subscribe than in an earlier run
			p.ids = append(p.ids, p.q.ids.next())
		}
		one := p.job
		one.id, one.sub.Function, one.sub.Place = p.ids[i], s.Function, i
		out[i] = &one
	}
	return out
}

// SendTx enqueues one job for each function that subscribes to the event, inside the caller's transaction, which must be
// undone if it returns an error. After the transaction succeeded the caller should pass each outcome to Committed, and
// an error to Refused.
func (q *Queue) SendTx(tx store.Tx, p *PreparedEvent) ([]Outcome, error) {
	all, err := subscriptions(tx, p.job.sub.Event)
	if err != nil {
		return nil, err
	}
	prepared := p.jobs(all)
	if err := PrefetchTx(tx, prepared); err != nil {
		return nil, err
	}
	outs := make([]Outcome, len(prepared))
	for i, one := range prepared {
		if outs[i], err = q.EnqueueTx(tx, one); err != nil {
			return nil, err
		}
	}
	return outs, nil
}
