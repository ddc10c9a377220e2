package shard

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/codec"
	"github.com/oncegate/oncegate/manager/internal/store"
)

// Collection is where the record is, for tools that read a store from outside.
const Collection store.Collection = "identity"

// recordKey is the key of the only record.
const recordKey = "ledger"

// Identity is what a ledger knows about itself.
type Identity struct {
	// ID is drawn once at random: 32 hexadecimal digits.
	ID string
	// Name is the shard's name, "" for a ledger that answers for any shard.
	Name string
	// Shards is the list in force, sorted; nil when there is none. Version counts its changes from 1.
	Shards  []string
	Version uint64
	// Epoch counts from 1 how often the ledger was restored, or noticed that it forgot something. Marks of earlier epochs
	// are settled: a quarantine covers what they know.
	Epoch uint64
	// Created is when the ID was drawn, by the store's clock, in Unix milliseconds.
	Created int64
	// Restored names the restore that the epoch began with, if any.
	Restored string
	// Replaces are the IDs of ledgers whose callers met this one when it was young. Their marks are settled, too.
	Replaces []string

	// runs are the latest runs of the manager, the present one last. Only on an engine that has positions.
	runs []run

	// past has a digest of each list that was in force, the latest last.
	past []digest
}

// maxPast bounds the lists that are remembered. The oldest are forgotten first.
const maxPast = 256

// maxReplaces bounds the ledgers that are remembered. The oldest are forgotten first.
const maxReplaces = 16

// run is a run of the manager.
type run struct {
	id    uint64 // the lowest bits of its marks' positions; see runBits
	began uint64 // the position of the ledger when it began
}

// maxRuns bounds the runs that are remembered. The oldest are forgotten first.
const maxRuns = 64

// maxRestored bounds the name of a restore: a time as text.
const maxRestored = 64

type digest [8]byte

func digestOf(sorted []string) (d digest) {
	sum := sha256.Sum256([]byte(strings.Join(sorted, "\n"))) // a name has no line feed
	copy(d[:], sum[:])
	return d
}

// The record:
//
//	version(1) bytes(id) bytes(name) uvarint(list version) uvarint(count) bytes(shard)* uvarint(count) digest*
//	uvarint(epoch) uvarint(created) bytes(restored) uvarint(count) bytes(id)* uvarint(count) (uvarint(id) uvarint(began))*
const recordVersion = 1

func (i *Identity) encode() []byte {
	id, _ := hex.DecodeString(i.ID)
	b := codec.AppendString([]byte{recordVersion}, string(id))
	b = codec.AppendString(b, i.Name)
	b = binary.AppendUvarint(b, i.Version)
	b = binary.AppendUvarint(b, uint64(len(i.Shards)))
	for _, s := range i.Shards {
		b = codec.AppendString(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(i.past)))
	for _, d := range i.past {
		b = append(b, d[:]...)
	}
	b = binary.AppendUvarint(b, i.Epoch)
	b = binary.AppendUvarint(b, uint64(i.Created))
	b = codec.AppendString(b, i.Restored)
	b = binary.AppendUvarint(b, uint64(len(i.Replaces)))
	for _, id := range i.Replaces {
		b = codec.AppendString(b, id)
	}
	b = binary.AppendUvarint(b, uint64(len(i.runs)))
	for _, r := range i.runs {
		b = binary.AppendUvarint(binary.AppendUvarint(b, r.id), r.began)
	}
	return b
}

// Read decodes the record. The error is a *store.UnreadableError.
func Read(key string, value []byte) (Identity, error) {
	unreadable := &store.UnreadableError{Collection: Collection, Key: key, Reason: "not a record of version 1"}
	d := codec.NewReader(value)
	text := func(most int) string {
		s := d.String()
		if len(s) > most {
			d.Fail(unreadable)
		}
		return s
	}
	if d.Byte() != recordVersion || key != recordKey {
		d.Fail(unreadable)
	}
	i := Identity{ID: hex.EncodeToString([]byte(text(64))), Name: text(api.MaxShardBytes), Version: d.Uvarint()}
	for range d.Count(api.MaxShards) {
		i.Shards = append(i.Shards, text(api.MaxShardBytes))
	}
	for range d.Count(maxPast) {
		var p digest
		i.past = append(i.past, p)
		copy(i.past[len(i.past)-1][:], d.Take(len(p)))
	}
	i.Epoch, i.Created, i.Restored = d.Uvarint(), int64(d.Uvarint()), text(maxRestored)
	for range d.Count(maxReplaces) {
		i.Replaces = append(i.Replaces, text(api.MarkIDBytes))
	}
	for range d.Count(maxRuns) {
		i.runs = append(i.runs, run{d.Uvarint(), d.Uvarint()})
	}
	if d.Err() != nil || len(d.Rest()) != 0 || !slices.IsSorted(i.Shards) {
		return Identity{}, unreadable
	}
	return i, nil
}
