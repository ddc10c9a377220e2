// Package stack runs Oncegate's processes together on one machine, for the examples: the payments upstream, the manager,
// and the gate in a proxy: a real Envoy with a published configuration, or the gateway.
//
// They start in that order, each when the one before answers, and stop in the opposite one. Every process has a process
// group of its own, so that Ctrl-C in a terminal reaches only the program that started them, which then stops them in
// order: SIGTERM first, SIGKILL to what is left after a while. What a process prints goes to a file; when it ends on its
// own account, that is an error which quotes the last lines.
//
// A process that the caller kills (KillManager) and starts again keeps its address, its data and its log file.
package stack
