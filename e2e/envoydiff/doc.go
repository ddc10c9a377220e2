// Package envoydiff holds the tests that compare hostsim with a real Envoy. A case is a script for the test guest
// (hostsim/testdata/script) and a list of steps of clients, upstreams and callees. It is played in hostsim and in
// Envoy, and after every step three things must be the same: what the guest logged (its callbacks with sizes and end
// flags, and the result of every host call), what each client has received, and what each upstream has received.
//
// Where they differ hostsim is wrong, unless the case says otherwise in its comment.
//
// Nothing here waits for time to pass. After each step the test polls the Envoy side, with requests through the same
// worker thread, until it shows what hostsim shows. Then it polls once more, so that a wrong extra event would be seen.
package envoydiff
