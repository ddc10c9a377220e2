// Package shard is what a ledger knows of itself and of those beside it: its id, its name, and the list
// of shards among which the keys are divided.
//
// Managers that share a store are one ledger, and all other managers are ledgers of their own. Gates
// choose between ledgers by name, see api.Owner. What is kept here makes a mistake of theirs, or of the
// operator, a refusal instead of a second execution:
//
//   - The name is kept with the data. A manager that is started on the data of another shard refuses to
//     start, and one that runs refuses calls that mean another shard.
//   - The list is kept with the data, too. A manager that has one inserts no reservation for a key that
//     the list gives to another shard. Whatever is there for such a key it answers as always: a key moves
//     when nothing of it is left, and the ledger that holds it decides when that is.
//
// # The record
//
// There is one record, in collection "identity". The release before does not know the collection and
// leaves it alone. On an engine of one manager it changes only while a manager starts. On an engine that
// several share it may change under a running manager: a transaction that inserts a reservation reads it in the same
// transaction, so that all managers go over to a new list at one instant, those that were started with an
// older one as well.
//
// # Changes of the list
//
// A key that moved must not be inserted here again, because an answer may be where it went. So an older list is
// not taken by accident, as by a rollback of a deployment or a pod that starts with settings of yesterday: the
// record has a digest of every list that was in force, and a version that grows with each. A manager started
// with a list that was in force before refuses to start unless it is given a higher version.
package shard
