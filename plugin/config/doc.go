// Package config reads the filter's configuration.
//
// The configuration is one JSON object; docs/reference/CONFIGURATION.md lists its
// fields. Parse is strict: a field that is unknown, repeated, of the wrong type or
// out of range makes it refuse the whole configuration, because a gate that runs with
// a misspelled limit protects less than its operator believes. The error names the
// field by its full path, the value, and what is allowed.
//
// The fields that concern the whole VM (manager, cache, waiters) exist once. The
// others say how a request is treated. At the top level they are the defaults of all
// rules; any element of match may repeat them. Parse merges them, so that a Route is
// complete: a rule overrides the top level, which overrides the built-in defaults.
// Objects merge by field, lists are replaced.
//
// The package builds with TinyGo and never panics, whatever the input is.
package config
