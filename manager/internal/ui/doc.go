// Package ui is the manager's web page: what an operator looks at, and the few things that an
// operator changes. It is an http.Handler for the paths below /ui/.
//
// # Pages
//
// A page is rendered on the server and can be read without JavaScript. It has three parts:
//
//   - a template, templates/NAME.html, which defines "main" and gets a *page;
//   - a handler of the form func(*UI, *visit) error, which ends with v.render("NAME", TITLE, data) or
//     returns an error;
//   - a line in routes, and one in navigation if the page is to be in the bar.
//
// All links are relative to {{.Root}}, so the page works below any prefix, also behind a proxy
// that takes one away. The templates escape what they show; {{show}} also makes control
// characters and changes of the writing direction visible.
//
// A part of a page that is to stay fresh is a template "NAME-live" with a function in lives that
// gets its data. The page has it in a <section data-live="NAME">. All viewers share one rendering
// of it, so it must show the same to everyone: no forms, and nothing that needs a role.
//
// # Rights
//
// Where the manager has tokens, a person shows the token of an operator or administrator once and
// gets a session in a cookie. The session ends with the token. A route names the roles that may
// use it; everything that changes or reveals something is a POST with the session's CSRF token,
// and is written to the audit log.
//
// Answers say Content-Security-Policy: scripts and styles come from the manager's own files only.
package ui
