package logs

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
)

// slot is an id of the window.
type slot struct {
	hash   Hash
	digest Digest
	number uint64 // of the entry
	at     int64  // log time of its append
}

// slotBytes is what max_bytes counts for an id.
const slotBytes = 64

// loadedIDs are the ids of the window that a few batches name. The window itself is in a store.
type loadedIDs struct {
	ids     map[Hash]slot
	added   []slot
	was     []slot            // what an added slot replaced
	kept    int               // added slots that undo leaves
	keys    int               // ids, or clients, in the store
	loaded  int               // of the clients in memory
	oldest  int64             // log time of the oldest id
	changed map[Hash]struct{} // clients
}

// Needs calls id for each id, or client, of the batch, and writer for each writer.
func (b *Batch) Needs(id func(Hash), writer func(string)) {
	for i := range b.items {
		p := &b.items[i]
		if p.Err != nil {
			continue
		}
		if p.ID != "" {
			id(p.hash)
		}
		if p.Writer != "" {
			writer(p.Writer)
		}
	}
}

// IDBytes is the size of an encoded id.
const IDBytes = 16 + 8 + 8

// LoadID takes an id of the window as EachAdded encoded it.
func (s *State) LoadID(h Hash, b []byte) error {
	if len(b) != IDBytes {
		return fmt.Errorf("an id of the window has %d bytes, must have %d", len(b), IDBytes)
	}
	sl := slot{hash: h, number: binary.BigEndian.Uint64(b[16:]), at: int64(binary.BigEndian.Uint64(b[24:]))}
	copy(sl.digest[:], b)
	s.win.ids[h] = sl
	return nil
}

// IDNumber decodes the entry number from a value that EachAdded wrote; 0 if b is malformed.
func IDNumber(b []byte) uint64 {
	if len(b) != IDBytes {
		return 0
	}
	return binary.BigEndian.Uint64(b[16:])
}

// EachAdded calls fn for each id that was added since NewState, with its encoded form.
func (s *State) EachAdded(fn func(h Hash, number uint64, value []byte) error) error {
	for i := range s.win.added {
		sl := &s.win.added[i]
		b := append(make([]byte, 0, IDBytes), sl.digest[:]...)
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, sl.number), uint64(sl.at))
		if err := fn(sl.hash, sl.number, b); err != nil {
			return err
		}
	}
	return nil
}

// LoadClient takes a client as EachClient encoded it.
func (s *State) LoadClient(h Hash, b []byte) error {
	d := codec.NewReader(b)
	c := readClient(&d)
	if d.Err() == nil && (len(d.Rest()) > 0 || c.hash != h) {
		d.Fail(fmt.Errorf("a client has another name, or %d bytes too many", len(d.Rest())))
	}
	if d.Err() != nil {
		return d.Err()
	}
	s.clients.byHash[h] = c
	s.win.loaded++
	return nil
}

// ClientAt returns the log time of a client's last append, from the client as EachClient encoded it.
func ClientAt(b []byte) (int64, error) {
	d := codec.NewReader(b)
	c := readClient(&d)
	return c.at, d.Err()
}

// EachClient calls fn for each client that was changed since NewState, with its encoded form.
func (s *State) EachClient(fn func(h Hash, value []byte) error) error {
	for h := range s.win.changed {
		if err := fn(h, s.clients.byHash[h].append(nil)); err != nil {
			return err
		}
	}
	return nil
}

// Keys is how many ids, or clients, the window holds.
func (s *State) Keys() int {
	if s.identity == Structured {
		return s.win.keys + len(s.clients.byHash) - s.win.loaded
	}
	return s.win.keys + len(s.win.added)
}

// Fits reports whether the configuration allows a window of so many keys.
func (c *Config) Fits(keys int) bool {
	return keys <= c.MaxKeys && int64(keys)*c.KeyBytes() <= c.MaxBytes
}

// KeyBytes is what MaxBytes and Info.WindowBytes count for an id, or a client.
func (c *Config) KeyBytes() int64 {
	if c.Identity == Structured {
		return clientBytes
	}
	return slotBytes
}

func (p *loadedIDs) find(h *Hash, now int64, window time.Duration) (*slot, bool) {
	sl, ok := p.ids[*h]
	return &sl, ok && now-sl.at < int64(window)
}

func (p *loadedIDs) add(sl slot) {
	p.was = append(p.was, p.ids[sl.hash])
	p.added = append(p.added, sl)
	p.ids[sl.hash] = sl
}

func (p *loadedIDs) keep(clients *clients) {
	p.kept = len(p.added)
	for i := range clients.undos {
		p.changed[clients.undos[i].hash] = struct{}{}
	}
}

func (p *loadedIDs) undo() {
	for i := len(p.added) - 1; i >= p.kept; i-- {
		if p.was[i].number == 0 {
			delete(p.ids, p.added[i].hash)
		} else {
			p.ids[p.added[i].hash] = p.was[i]
		}
	}
	p.added, p.was = p.added[:p.kept], p.was[:p.kept]
}
