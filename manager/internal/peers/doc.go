// Package peers connects a manager to the managers of other data centres. Each data centre has a ledger of its own and
// a name for it, the origin. Package peers pulls what the others recorded into the ledger (see package ledger), compares
// digests with them, and knows who they are and how to call them.
package peers
