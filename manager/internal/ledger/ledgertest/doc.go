// Package ledgertest is the contract of the ledger as a test suite. Run tests a
// ledger on any engine, with two managers if they can share the engine. Model
// judges concurrent histories by the wall clock, also across crashes.
package ledgertest
