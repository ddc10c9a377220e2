// Package shard stores what a ledger knows about itself and the other ledgers: its id, its name, and the list of shards
// that divide the keys among them.
//
// Managers that share a store are one ledger; all other managers are ledgers of their own. Gates choose a ledger by
// name (see api.Owner). What this package stores turns a mistake of a gate or an operator into a refusal instead of a
// second execution:
//
//   - The name is stored with the data. A manager that is started on the data of
//     another shard does not start, and a running manager refuses calls that are
//     meant for another shard.
//   - The list is stored with the data, too. A manager that has a list does not
//     reserve a key that the list gives to another shard. It still answers for
//     entries it has: a key moves once it has no entry here, and the ledger that
//     holds the entry decides when that is.
//
// # The record
//
// There is one record, in collection "identity". On an engine with a single
// manager the record changes only while a manager starts. On an engine that several managers
// share it may change under a running manager: a transaction that inserts a reservation reads it in the same
// transaction. So all managers change to a new list at the same instant, including those that were started with an
// older list.
//
// # Changes of the list
//
// A key that moved must not be inserted here again, because its answer may be where it moved to. So an older list must
// not be restored by accident, for example by a rollback of a deployment or a pod with old settings. The record has a
// digest of every list that was in force, and a version that grows with each list. A manager that is started with an
// earlier list does not start unless it is given a higher version.
package shard
