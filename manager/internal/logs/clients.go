package logs

import "slices"

const (
	// clientDigests is for how many of a client's last sequences the payload is known.
	clientDigests = 32
	// clientRuns is how many stretches of consecutive sequences with consecutive entries
	// are known of a client.
	clientRuns = 32
	// clientBytes is what a client takes in memory at most.
	clientBytes = 512 + clientRuns*24
)

// client is what a log with structured ids knows of one client and nonce.
type client struct {
	hash    Hash
	first   uint64 // sequence
	last    uint64
	at      int64 // log time of its last append
	digests [clientDigests]uint64
	runs    []run // ascending
}

// run is a stretch of sequences from seq on whose entries have the numbers from number on.
type run struct{ seq, number, n uint64 }

// entry returns the number of a sequence, if it is known.
func (c *client) entry(seq uint64) (uint64, bool) {
	for i := len(c.runs) - 1; i >= 0; i-- {
		if r := &c.runs[i]; seq >= r.seq && seq-r.seq < r.n {
			return r.number + seq - r.seq, true
		}
	}
	return 0, false
}

// clients are the states of those that were loaded or advanced.
type clients struct {
	byHash map[Hash]*client
	undos  []clientUndo
}

// clientUndo is what a client was before the batch touched it; nil when it was not there.
type clientUndo struct {
	hash Hash
	was  *client
}

// advance records that the sequence got the number. The caller has checked that it is the next.
func (cs *clients) advance(h Hash, seq, number uint64, digest uint64, now int64) {
	c, was := &client{hash: h, first: seq}, cs.byHash[h]
	if was != nil {
		*c = *was
		c.runs = slices.Clone(was.runs)
	}
	cs.byHash[h] = c
	cs.undos = append(cs.undos, clientUndo{h, was})
	c.last, c.at = seq, now
	c.digests[seq%clientDigests] = digest
	if n := len(c.runs); n > 0 && c.runs[n-1].seq+c.runs[n-1].n == seq && c.runs[n-1].number+c.runs[n-1].n == number {
		c.runs[n-1].n++
	} else {
		if n == clientRuns {
			c.runs = slices.Delete(c.runs, 0, 1)
		}
		c.runs = append(c.runs, run{seq, number, 1})
	}
}

// keep makes what advanced since the last keep or undo stay.
func (cs *clients) keep() {
	clear(cs.undos)
	cs.undos = cs.undos[:0]
}

func (cs *clients) undo() {
	for _, u := range slices.Backward(cs.undos) {
		if u.was == nil {
			delete(cs.byHash, u.hash)
		} else {
			cs.byHash[u.hash] = u.was
		}
	}
	cs.keep()
}
