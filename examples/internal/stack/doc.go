// Package stack runs Oncegate's processes together on one machine, for the examples: the payments upstream, the manager,
// and the gate in a proxy: a real Envoy with a published configuration, or the gateway.
//
// They start in that order, each when the previous one answers, and stop in the opposite order. Every process has its
// own process group, so Ctrl-C in a terminal reaches only the program that started them. That program stops them in
// order, with SIGTERM first and SIGKILL for what is left after a while. The output of a process goes to a file. If a
// process ends by itself, the error quotes the last lines of that file.
//
// A process that the caller kills (KillManager) and starts again keeps its address, its data and its log file.
package stack
