// Package clients has scripts that call with client libraries, and record.py, which shows what the libraries change between
// their tries: make clients. There is no Go code in it but the test.
package clients
