// Package clienttest has those tests of manager/client that need a manager, so that the client requires nothing of one.
package clienttest
