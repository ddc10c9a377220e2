// Package docs holds the project's documents and the tests that keep them true: links lead somewhere, every
// test, path and make target that a document names exists, and no comment, document, help text or log line
// has a word of words.txt. A test of imports keeps packages from depending on what is above them.
package docs
