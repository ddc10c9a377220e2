// Package ledgertest is the contract of the ledger as a test suite: Run holds a
// ledger on any engine to it, with as many managers as the engine can share.
// Model judges concurrent histories by the wall clock, also across crashes.
package ledgertest
