package logs

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
)

// What engines write. Numbers are unsigned varints, strings and payloads have their length in
// front.
//
//	entries   first number, log time, count, then for each: id, payload, count of
//	          properties, then for each: name, value
//	snapshot  a header in JSON, then stretches of the window, then clients
//
// A log's configuration is JSON.

// AppendEntries encodes entries with consecutive numbers from first on that were appended
// together at log time at.
func AppendEntries(dst []byte, first uint64, at int64, entries []Entry) []byte {
	dst = binary.AppendUvarint(dst, first)
	dst = binary.AppendUvarint(dst, uint64(at))
	dst = binary.AppendUvarint(dst, uint64(len(entries)))
	for i := range entries {
		e := &entries[i]
		dst = codec.AppendString(dst, e.ID)
		dst = codec.AppendString(dst, e.Payload)
		dst = binary.AppendUvarint(dst, uint64(len(e.Properties)))
		for _, p := range e.Properties {
			dst = codec.AppendString(codec.AppendString(dst, p.Name), p.Value)
		}
	}
	return dst
}

// EachEntry is the inverse of AppendEntries. Payloads alias b. An error of fn ends it and is
// returned.
func EachEntry(b []byte, fn func(e *Entry, at int64) error) error {
	d := codec.NewReader(b)
	first, at, count := d.Uvarint(), d.Uvarint(), d.Uvarint()
	if d.Err() == nil && (first == 0 || count == 0 || count > MaxBatchEntries || first+count < first || at > 1<<62) {
		return fmt.Errorf("the record has %d entries from number %d on at log time %d", count, first, at)
	}
	for i := uint64(0); i < count && d.Err() == nil; i++ {
		e := Entry{Number: first + i, ID: d.String(), Payload: d.Bytes()}
		n := d.Uvarint()
		if n > MaxProperties {
			return fmt.Errorf("the record has an entry with %d properties", n)
		}
		for ; n > 0 && d.Err() == nil; n-- {
			e.Properties = append(e.Properties, Property{d.String(), d.String()})
		}
		if d.Err() == nil {
			if err := fn(&e, int64(at)); err != nil {
				return err
			}
		}
	}
	if d.Err() == nil && len(d.Rest()) > 0 {
		return fmt.Errorf("%d bytes follow the last entry", len(d.Rest()))
	}
	return d.Err()
}

// Settings are a log's configuration as it is written: with its name and hash key.
type Settings struct {
	Name   string
	Key    HashKey
	Config Config
}

type settingsJSON struct {
	Name        string `json:"name"`
	Key         []byte `json:"key"`
	Identity    string `json:"identity"`
	WindowNS    int64  `json:"window_ns"`
	MaxKeys     int    `json:"max_keys"`
	MaxBytes    int64  `json:"max_bytes"`
	Refuse      bool   `json:"refuse_when_full,omitempty"`
	RetainNS    int64  `json:"retain_ns"`
	RetainBytes int64  `json:"retain_bytes"`
}

func (s *Settings) wire() settingsJSON {
	c := &s.Config
	return settingsJSON{s.Name, s.Key[:], c.Identity.String(), int64(c.Window), c.MaxKeys, c.MaxBytes, c.RefuseWhenFull, int64(c.Retain), c.RetainBytes}
}

// AppendJSON encodes the settings.
func (s *Settings) AppendJSON(dst []byte) []byte {
	b, _ := json.Marshal(s.wire()) // of strings and numbers, so it does not fail
	return append(dst, b...)
}

// ParseJSON is the inverse of AppendJSON.
func (s *Settings) ParseJSON(b []byte) error {
	var w settingsJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	return s.set(&w)
}

func (s *Settings) set(w *settingsJSON) error {
	id, ok := ParseIdentity(w.Identity)
	if !ok || len(w.Key) != len(s.Key) || w.WindowNS <= 0 || w.MaxKeys < 1 || w.MaxBytes < 1 {
		return fmt.Errorf("a log's settings have identity %q, a key of %d bytes, window %d, max_keys %d, max_bytes %d",
			w.Identity, len(w.Key), w.WindowNS, w.MaxKeys, w.MaxBytes)
	}
	s.Name = w.Name
	copy(s.Key[:], w.Key)
	s.Config = Config{id, time.Duration(w.WindowNS), w.MaxKeys, w.MaxBytes, w.Refuse, time.Duration(w.RetainNS), w.RetainBytes}
	return nil
}

// Settings are those in force.
func (s *State) Settings() Settings { return Settings{s.name, s.key, s.config} }

// Snapshot is a state at one moment.
type Snapshot struct {
	head    []byte
	view    view
	clients [][]byte
}

type headJSON struct {
	settingsJSON
	Next    uint64            `json:"next"`
	NowNS   int64             `json:"now_ns"`
	Keys    int               `json:"keys"` // ids in the window
	Writers map[string]uint64 `json:"writers,omitempty"`
	Floor   uint64            `json:"floor,omitempty"`
}

// Kinds of a snapshot's records, their first byte. Engines use others for their own.
const (
	kindHead    = 'h'
	kindSlots   = 's'
	kindClients = 'c'
)

// clientsInRecord is how many clients go into one record of a snapshot.
const clientsInRecord = 512

// Snapshot copies the state. Slots of the window are not copied: they do not change.
func (s *State) Snapshot() *Snapshot {
	settings := s.Settings()
	names := make(map[string]uint64, len(s.writers)) // JSON has no place for bytes that are not UTF-8
	for name, epoch := range s.writers {
		names[hex.EncodeToString([]byte(name))] = epoch
	}
	head, _ := json.Marshal(headJSON{settings.wire(), s.next, s.now, s.win.len(), names, s.floor})
	snap := &Snapshot{head: head, view: s.win.view()}
	var b []byte
	n := 0
	for c := s.clients.oldest; c != nil; c = c.newer {
		b = c.append(b)
		if n++; n%clientsInRecord == 0 || c.newer == nil {
			snap.clients, b = append(snap.clients, b), nil
		}
	}
	return snap
}

const slotSize = 16 + 16 + 8 + 8

// Write hands the records of the snapshot to add, which must not keep them.
func (s *Snapshot) Write(add func([]byte) error) error {
	if err := add(append([]byte{kindHead}, s.head...)); err != nil {
		return err
	}
	b := make([]byte, 0, 1+chunkSlots*slotSize)
	err := s.view.each(func(slots []slot) error {
		b = append(b[:0], kindSlots)
		for i := range slots {
			b = append(append(b, slots[i].hash[:]...), slots[i].digest[:]...)
			b = binary.LittleEndian.AppendUint64(b, slots[i].number)
			b = binary.LittleEndian.AppendUint64(b, uint64(slots[i].at))
		}
		return add(b)
	})
	for _, c := range s.clients {
		if err == nil {
			err = add(append([]byte{kindClients}, c...))
		}
	}
	return err
}

// RestoreState reads one record of a snapshot into s, which is nil before the first one, and
// returns the state. ok is false for a record of another kind.
func RestoreState(s *State, rec []byte) (_ *State, ok bool, err error) {
	switch kind, b := rec[0], rec[1:]; {
	case kind == kindHead:
		s, err = restoreHead(b)
	case kind != kindSlots && kind != kindClients:
		return s, false, nil
	case s == nil:
		err = errors.New("the snapshot does not begin with its head")
	case kind == kindSlots:
		err = s.restoreSlots(b)
	default:
		err = s.restoreClients(b)
	}
	return s, true, err
}

func restoreHead(b []byte) (*State, error) {
	var h headJSON
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, err
	}
	var settings Settings
	if err := settings.set(&h.settingsJSON); err != nil {
		return nil, err
	}
	if h.Next == 0 || h.NowNS < 0 {
		return nil, fmt.Errorf("the snapshot's next entry is %d, its log time %d", h.Next, h.NowNS)
	}
	s := NewState(settings.Name, settings.Key, settings.Config)
	s.next, s.now, s.floor = h.Next, h.NowNS, h.Floor
	s.win.reserve(min(h.Keys, MaxMaxKeys))
	for name, epoch := range h.Writers {
		raw, err := hex.DecodeString(name)
		if err != nil {
			return nil, fmt.Errorf("the snapshot's writer %.64q: %w", name, err)
		}
		s.writers[string(raw)] = epoch
	}
	return s, nil
}

func (s *State) restoreSlots(b []byte) error {
	if len(b) == 0 || len(b)%slotSize != 0 {
		return fmt.Errorf("a stretch of the window has %d bytes", len(b))
	}
	for ; len(b) > 0; b = b[slotSize:] {
		var sl slot
		copy(sl.hash[:], b)
		copy(sl.digest[:], b[16:])
		sl.number, sl.at = binary.LittleEndian.Uint64(b[32:]), int64(binary.LittleEndian.Uint64(b[40:]))
		if sl.number >= s.next || sl.at > s.now {
			return fmt.Errorf("the window holds entry %d of log time %d, the snapshot is of entry %d and log time %d", sl.number, sl.at, s.next-1, s.now)
		}
		s.win.add(sl)
	}
	s.win.keep()
	return nil
}

func (s *State) restoreClients(b []byte) error {
	d := codec.NewReader(b)
	for len(d.Rest()) > 0 && d.Err() == nil {
		if c := readClient(&d); d.Err() == nil {
			s.clients.put(c)
		}
	}
	return d.Err()
}

// append encodes a client.
func (c *client) append(b []byte) []byte {
	b = append(b, c.hash[:]...)
	for _, v := range []uint64{c.first, c.last, uint64(c.at), uint64(len(c.runs))} {
		b = binary.AppendUvarint(b, v)
	}
	for _, r := range c.runs {
		b = binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(b, r.seq), r.number), r.n)
	}
	for _, d := range c.digests {
		b = binary.LittleEndian.AppendUint64(b, d)
	}
	return b
}

// readClient is the inverse of append; after an error it is not to be used.
func readClient(d *codec.Reader) *client {
	c := new(client)
	copy(c.hash[:], d.Take(len(c.hash)))
	c.first, c.last, c.at = d.Uvarint(), d.Uvarint(), int64(d.Uvarint())
	for range d.Count(clientRuns) {
		c.runs = append(c.runs, run{d.Uvarint(), d.Uvarint(), d.Uvarint()})
	}
	for i := range c.digests {
		if b := d.Take(8); b != nil {
			c.digests[i] = binary.LittleEndian.Uint64(b)
		}
	}
	return c
}
