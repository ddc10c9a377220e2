// Package envoydiff holds the tests that compare hostsim with a real Envoy. A case is a
// script for the test guest (hostsim/testdata/script) and a list of steps: what clients,
// upstreams and callees do. It is played twice, in hostsim and in Envoy, and after every
// step three things must be the same: what the guest logged (its callbacks with sizes and
// end flags, and the result of every host call), what each client has got, and what each
// upstream has got.
//
// Where they differ hostsim is wrong, unless the case says otherwise in its comment.
//
// Nothing here waits for a time to pass. After each step the Envoy side is asked, by a
// request through the same worker thread, until it shows what hostsim shows; then it is
// asked again, so that what must not happen had its chance to.
package envoydiff
