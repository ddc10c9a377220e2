package storelogs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collections and their indexes, see doc.go.
const (
	heads   = store.Collection("log_heads")
	entries = store.Collection("log_entries")
	ids     = store.Collection("log_ids")
	windows = store.Collection("log_windows")
	clients = store.Collection("log_clients")
	writers = store.Collection("log_writers")
	graves  = store.Collection("log_graves")
	meta    = store.Collection("log_meta")

	// EntryCollection has the entries that callers appended, EntryIndex each of its records once.
	EntryCollection = entries
	EntryIndex      = order

	order = "log" // the index of each of them: the log's prefix, then the order

	metaClock = "clock"
	metaCount = "count"
)

// head is a log's record.
type head struct {
	settings logs.Settings
	prefix   string // of keys

	headJSON
}

type headJSON struct {
	Version  int             `json:"version"`
	Settings json.RawMessage `json:"settings"`
	Next     uint64          `json:"next"`  // number of the next entry
	First    uint64          `json:"first"` // of the oldest one that is kept
	At       int64           `json:"at"`    // log time of the last append
	Bytes    int64           `json:"bytes"` // of the entries that are kept
	Keys     int             `json:"keys"`  // ids, or clients
	Writers  int             `json:"writers"`
	Floor    uint64          `json:"floor,omitempty"` // newest epoch of any writer that was removed
}

const headVersion = 1

func newHead(s logs.Settings) *head {
	return &head{settings: s, prefix: prefixOf(&s.Key), headJSON: headJSON{Version: headVersion, Next: 1, First: 1}}
}

func prefixOf(k *logs.HashKey) string {
	sum := sha256.Sum256(k[:])
	return string(sum[:8])
}

// getHead reads a log's head. The error is logs.NoSuchLog when there is none.
func getHead(tx store.Tx, name string) (*head, error) {
	h, err := store.Read(tx, heads, name, parseHead)
	if h == nil && err == nil {
		err = logs.NoSuchLog(name)
	}
	return h, err
}

// parseHead reads the head of a log. The error is a *store.UnreadableError.
func parseHead(name string, b []byte) (*head, error) {
	var h head
	err := json.Unmarshal(b, &h.headJSON)
	if err == nil && h.Version != headVersion {
		err = fmt.Errorf("it has the version %d, this program reads %d", h.Version, headVersion)
	}
	if err == nil {
		err = h.settings.ParseJSON(h.Settings)
	}
	if err == nil && (h.settings.Name != name || h.First < 1 || h.First > h.Next) {
		err = fmt.Errorf("it is of the log %q with the entries %d to %d", h.settings.Name, h.First, h.Next-1)
	}
	if err != nil {
		return nil, &store.UnreadableError{Collection: heads, Key: name, Reason: err.Error()}
	}
	h.prefix = prefixOf(&h.settings.Key)
	return &h, nil
}

// prefixOfUnreadable returns the prefix of a log whose head getHead cannot read, "" if the head does not show it.
func prefixOfUnreadable(tx store.Tx, name string) string {
	var h head
	b, err := tx.Get(heads, name)
	if err != nil || json.Unmarshal(b, &h.headJSON) != nil || h.settings.ParseJSON(h.Settings) != nil || h.settings.Name != name {
		return ""
	}
	return prefixOf(&h.settings.Key)
}

func (h *head) put(tx store.Tx) error {
	h.Settings = h.settings.AppendJSON(nil)
	b, err := json.Marshal(&h.headJSON)
	if err != nil {
		return err
	}
	name := h.settings.Name
	return tx.Put(heads, name, b, store.Entry{Index: order, SortKey: name})
}

// all is the range of an index that has the records of the log.
func (h *head) all(limit int) store.Range { return prefixRange(h.prefix, limit) }

func prefixRange(prefix string, limit int) store.Range {
	return store.Range{From: prefix, To: prefix + "\xff", Limit: limit} // numbers are below 2^63
}

// key is the key, or sort key, of numbers in a log.
func key(prefix string, numbers ...uint64) string {
	b := make([]byte, 0, 64)
	b = append(b, prefix...)
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return string(b)
}

// numbers is the inverse of key; what is missing is zero.
func numbers(key string) (n [3]uint64) {
	b := []byte(key[min(8, len(key)):])
	for i := range n {
		if len(b) >= 8 {
			n[i] = binary.BigEndian.Uint64(b)
			b = b[8:]
		}
	}
	return n
}

func topic(name string) string { return "log/" + name }
