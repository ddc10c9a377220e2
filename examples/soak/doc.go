// Package soak is `make soak` over the whole stack: manager, proxy and payments as real
// processes under a steady load, for seconds in the ordinary tests and for as long as
// SOAK says otherwise. There is no code in it but the test.
package soak
