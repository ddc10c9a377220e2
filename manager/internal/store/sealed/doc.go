// Package sealed keeps the values of an engine encrypted. Store is a store.Store around an engine: it seals the values
// of some collections (see package crypt) when they are put, and opens them when they are got. So the engine, its files,
// its snapshots and what is copied from them never hold those values in plain.
//
// Keys, index entries and the other collections stay as they are, since engines search and order by them.
//
// # Which keys are needed
//
// A record of the store lists the ids of all keys that values may be sealed under, each with a sealed check text. A
// manager that lacks one of these keys, or has another key with the same id, does not start. The record also says which
// key encrypts. When a start names a new one, that manager re-encrypts all values that are under another key, or plain.
// When none is left, the record forgets the other ids. Managers that share an engine make sure every minute that the
// record lists the key they use, so that a manager with an older file is not forgotten.
//
// A manager that ends within that minute may leave values under a key that the record has forgotten. So on such an engine
// each manager looks through all values after its start, whatever the record lists, and two minutes after a pass that made
// the record forget a key. Until a pass after that time has found nothing to forget, Listed has all keys of the file, and plain.
//
// A plain value is always readable: a store that was not encrypted from its beginning has them until they are re-encrypted.
package sealed
