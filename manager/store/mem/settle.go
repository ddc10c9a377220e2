package mem

// unsettled is what has to happen to the counts and to the memory of deletions
// when transactions become durable, in order of their sequence numbers. It is
// guarded by Store.mu and as long as the changes that wait for their fsync.
type unsettled struct {
	queue []change
	head  int
}

// change is due when seq is durable.
type change struct {
	seq     uint64
	count   *int // to be changed by delta
	delta   int
	c       *collection // whose deletion of key is to be forgotten, or nil
	deleted string
}

// add queues what the applied write w, which replaced old, changes.
func (u *unsettled) add(w *write, old *record, seq uint64) {
	switch {
	case w.rec != nil && old == nil:
		u.queue = append(u.queue, change{seq: seq, count: &w.c.durable, delta: 1})
	case w.rec == nil && old != nil:
		w.c.deleted[w.key] = seq
		u.queue = append(u.queue, change{seq: seq, count: &w.c.durable, delta: -1, c: w.c, deleted: w.key})
	}
	if old != nil {
		for i := range old.entries {
			if ix := old.entries[i].ix; w.rec == nil || w.rec.entryIn(ix) == nil {
				u.queue = append(u.queue, change{seq: seq, count: &ix.durable, delta: -1})
			}
		}
	}
	if w.rec != nil {
		for i := range w.rec.entries {
			if ix := w.rec.entries[i].ix; old == nil || old.entryIn(ix) == nil {
				u.queue = append(u.queue, change{seq: seq, count: &ix.durable, delta: 1})
			}
		}
	}
}

// settle does what is due now that everything up to durable is durable.
func (u *unsettled) settle(durable uint64) {
	for u.head < len(u.queue) && u.queue[u.head].seq <= durable {
		ch := &u.queue[u.head]
		*ch.count += ch.delta
		if ch.c != nil && ch.c.deleted[ch.deleted] == ch.seq {
			delete(ch.c.deleted, ch.deleted)
		}
		*ch = change{}
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
