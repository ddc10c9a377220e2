// Package schema holds the JSON shapes of the manager's API as Go structs, and one encoder and one strict decoder for all of
// them. The manager and its clients share it; the filter, which TinyGo builds, does not.
//
// A member has the name of its json tag. Options of that tag and further tags say the rest:
//
//	json:"name,omitempty"  left out when it is zero or empty; omitzero: when it is zero
//	whole:"true"           a struct whose members are those of the object around it, as an embedded struct's are, and none is left out
//	enum:"a,b"             the texts that Parse accepts
//	zero:"must be ..."     what Parse says of a zero that was sent: it would mean that nothing was sent
//	wrong:"must be ..."    what Parse says of a value of another type, where the usual text would not do
//	max:"1000"             Parse reads one element more of an array and leaves out the rest
//	text:"unicode"         a string in which Parse accepts no bytes and escapes that are not Unicode text
//	unit:"s"               a duration in seconds
//
// A time.Duration is a whole number of milliseconds, a time.Time a text of RFC 3339, a []byte base64, and a json.RawMessage
// any value. A null means that a member is absent, but in a json.RawMessage, an any or a []byte, where it is a value.
package schema
