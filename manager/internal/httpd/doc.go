// Package httpd is the manager's HTTP server, on net/http: HTTP/1.1 and, with TLS
// or prior knowledge, HTTP/2. It knows nothing of ledgers and jobs: handlers come
// with their routes, and see a Request and a Response of this package.
//
// It bounds headers, bodies, connections, requests at work, and the time that a
// client has to send its request and to take its answer.
//
// Requests of HTTP/1 that state their length twice get 400 (see framing).
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
//
// A request is served with few allocations: the exchange that carries it and the
// bytes of its body are reused, contexts that bound the work are shared by all
// requests of a second, header values are made once, and so are the metrics of a
// route.
package httpd
