package api

import "slices"

// Durability says how far a key is protected before a reserve is answered.
type Durability uint8

// The durabilities.
const (
	// DurabilityLocal: this ledger has the key. Two data centres may both run a key that reaches both of them.
	DurabilityLocal Durability = iota
	// DurabilityRegion: this ledger has the key on a quorum of machines.
	DurabilityRegion
	// DurabilityGlobal: the key's home, one of all data centres, has it. No two data centres run the key.
	DurabilityGlobal
)

var durabilityNames = [...]string{"local", "region", "global"}

// DurabilityNames lists the names for messages.
const DurabilityNames = "local, region or global"

const fieldDurability = "durability"

// String returns the durability's name on the wire, "invalid" for an unknown one.
func (d Durability) String() string {
	if int(d) < len(durabilityNames) {
		return durabilityNames[d]
	}
	return "invalid"
}

// ParseDurability is the inverse of String.
func ParseDurability(name string) (Durability, bool) {
	i := slices.Index(durabilityNames[:], name)
	return Durability(max(i, 0)), i >= 0
}

// Home returns the index in origins of the data centre that decides about a global key, and -1 for an empty list. All
// keys {client_id}:{sequence}:{nonce} of a client have the same home, whatever their scope. The home of any other key
// follows from scope and key. Like Owner, it depends on nothing but the names, in any order, and is part of the wire
// format.
func Home(origins []string, scope, key string) int {
	if k, ok := ParseStructuredKey(key); ok {
		return Owner(origins, "", k.Client)
	}
	return Owner(origins, scope, key)
}
