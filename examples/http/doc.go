// Package http has examples that use the manager's HTTP API from other languages, with their HTTP libraries and nothing
// else: once.sh (curl), once.py, once.ts and Once.java. Its test runs them. There is no code in it but the test.
package http
