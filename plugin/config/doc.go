// Package config reads the filter's configuration.
//
// The configuration is one JSON object; docs/reference/CONFIGURATION.md lists its fields. It is
// read strictly: a field that is unknown, repeated, of the wrong type or out of
// range refuses the whole configuration, because a gate that runs with a
// misspelled limit protects less than its operator believes. The error names
// the field by its full path, the value, and what is allowed.
//
// Fields exist on up to two levels. Those that size the VM (manager, cache,
// waiters) exist once. The others describe how a request is treated; they stand
// at the top level as the default of all rules and may be repeated in any
// element of match. Parse merges them, so that a Route is complete: rule over
// top level over built-in default. Objects merge by field, lists are replaced.
//
// The package builds with TinyGo and never panics, whatever it is given.
package config
