package mem

// unsettled is what has to happen to the counts and to the memory of deletions
// when transactions become durable, in order of their sequence numbers. It is
// guarded by Store.mu and as long as the changes that wait for their fsync.
type unsettled struct {
	queue []change
	head  int
}

// change is an applied write that is durable when seq is.
type change struct {
	seq uint64
	c   *collection
	old *record // what was replaced or deleted, nil if nothing
	rec *record // what took its place, nil for a delete
}

// add queues the applied write w, which replaced old.
func (u *unsettled) add(w *write, old *record, seq uint64) {
	if w.rec == nil && old == nil {
		return
	}
	if w.rec == nil {
		w.c.deleted[w.key] = seq
	}
	u.queue = append(u.queue, change{seq, w.c, old, w.rec})
}

// settle counts the change as durable.
func (ch *change) settle() {
	c := ch.c
	if ch.old != nil {
		c.durable--
		c.durableBytes -= ch.old.size()
		for i := range int(ch.old.n) {
			c.indexes[ch.old.slot(i).index].durable--
		}
	}
	if ch.rec != nil {
		c.durable++
		c.durableBytes += ch.rec.size()
		for i := range int(ch.rec.n) {
			c.indexes[ch.rec.slot(i).index].durable++
		}
	} else if key := ch.old.key(); c.deleted[key] == ch.seq {
		delete(c.deleted, key)
	}
}

// settle does what is due now that everything up to durable is durable.
func (u *unsettled) settle(durable uint64) {
	for u.head < len(u.queue) && u.queue[u.head].seq <= durable {
		u.queue[u.head].settle()
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
