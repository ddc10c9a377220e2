// Package browser tests the manager's web page in Chromium. It is a module of its own: nothing else needs what drives a browser.
//
// testdata/axe.min.js is axe-core 4.14.1 from npm, which checks that people who do not see or do not use a mouse can use
// the pages. Its licence is beside it.
package browser
