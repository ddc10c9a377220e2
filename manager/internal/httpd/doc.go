// Package httpd is the manager's HTTP server. It knows nothing of ledgers and
// jobs: handlers come with their routes, and see a Request and a Response of this
// package and no HTTP engine.
//
// Two engines carry requests: fasthttp, the default, whose requests cost
// few allocations, and net/http, which also speaks HTTP/2. Both enforce the
// same limits: headers, bodies, connections, requests at work, and time for a
// client to send its request and to take its answer.
//
// A request passes these steps: it is counted, refused with 503 when too many
// are at work or the server is stopping, authorized, routed by method and
// path, shown to the guard, and handled with a context that bounds its work. A
// handler that waits on purpose calls Request.Hold: the request then counts as
// held instead of at work, and its context ends when the client leaves.
//
// Every answer carries the header oncegate-manager, and errors are problem+json
// with a code of package api; except that net/http answers by itself what it
// cannot read as a request.
package httpd
