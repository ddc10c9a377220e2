// Package feed sends what a ledger of several data centres recorded to the others, and imports what they recorded; see
// package ledger.
//
// Publish gives each outcome a number in the change feed, a page of many in one record. The feed holds keys only: Changes
// reads the entries, so an answer that is gone is not sent.
//
// On an engine that one process uses, a later transaction has a later time of the hybrid clock. So everything up to the time
// in the feed's head is published, and the ledger's index has the rest. On a shared engine the ledger's
// outbox has it, and Publish removes a record from there in the transaction that publishes its keys. A crash at any point
// leaves an outcome unpublished or published.
//
// Import divides large imports into small transactions. The ledger decides about each outcome.
//
// Run also publishes outcomes from before the ledger had an origin, and removes conflicts that are over.
//
// Digests compare what two ledgers hold of an origin, per span of the hybrid clock. Outcomes reads a span that differs.
package feed
