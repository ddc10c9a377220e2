package logs

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/internal/codec"
)

// What engines write. Numbers are unsigned varints, strings and payloads have their length in
// front.
//
//	entries   first number, log time, count, then for each: id, payload, count of
//	          properties, then for each: name, value
//	client    hash, first and last sequence, log time, count of runs, then for each:
//	          sequence, number, length; then digests
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

// AppendJSON encodes the settings.
func (s *Settings) AppendJSON(dst []byte) []byte {
	c := &s.Config
	w := settingsJSON{s.Name, s.Key[:], c.Identity.String(), int64(c.Window), c.MaxKeys, c.MaxBytes, c.RefuseWhenFull, int64(c.Retain), c.RetainBytes}
	b, _ := json.Marshal(w) // of strings and numbers, so it does not fail
	return append(dst, b...)
}

// ParseJSON is the inverse of AppendJSON.
func (s *Settings) ParseJSON(b []byte) error {
	var w settingsJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
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
