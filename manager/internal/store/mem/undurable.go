package mem

// undurable queues applied changes until they are durable, in the order of their sequence numbers. Then the counts and
// the memory of deletions are updated. It is guarded by Store.mu and as long as the changes that wait for their fsync.
type undurable struct {
	queue []change
	head  int
}

// change is an applied write. It is durable when record seq is.
type change struct {
	seq uint64
	c   *collection
	old *record // what was replaced or deleted, nil if nothing
	rec *record // what replaced it, nil for a delete
}

// add queues the applied write w, which replaced old.
func (u *undurable) add(w *write, old *record, seq uint64) {
	if w.rec == nil && old == nil {
		return
	}
	if w.rec == nil {
		w.c.deleted[w.key] = seq
	}
	u.queue = append(u.queue, change{seq, w.c, old, w.rec})
}

// apply counts the change as durable.
func (ch *change) apply() {
	c := ch.c
	c.tallyDurable(ch.old, -1)
	c.tallyDurable(ch.rec, 1)
	if ch.rec == nil {
		if key := ch.old.key(); c.deleted[key] == ch.seq {
			delete(c.deleted, key)
		}
	}
}

func (c *collection) tallyDurable(rec *record, sign int) {
	if rec == nil {
		return
	}
	c.durable += sign
	c.durableBytes += int64(sign) * rec.size()
	for i := range int(rec.n) {
		c.indexes[rec.slot(i).index].durable += sign
	}
}

// applyUpTo counts all changes up to sequence number durable.
func (u *undurable) applyUpTo(durable uint64) {
	for u.head < len(u.queue) && u.queue[u.head].seq <= durable {
		u.queue[u.head].apply()
		u.queue[u.head] = change{}
		u.head++
	}
	if u.head == len(u.queue) {
		u.queue, u.head = u.queue[:0], 0
	} else if u.head > len(u.queue)/2 {
		n := copy(u.queue, u.queue[u.head:])
		clear(u.queue[n:])
		u.queue, u.head = u.queue[:n], 0
	}
}
