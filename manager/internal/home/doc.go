// Package home finds the data centre that decides about a global key, and makes calls there.
//
// Every global key has a home, one of all data centres: the owner of the client id of a structured key, else of scope
// and key, by rendezvous hashing over the names of all data centres (api.Home). The home's ledger decides, so no two
// data centres run the key. The manager that gets a call of a gate makes it at the home with the same token, and answers
// what the home answers (Calls).
//
// A home takes a reserve only if it agrees that the key is its own, and if both sides have the same list of data centres.
// Otherwise two homes could run one key. It takes other calls about any key that its ledger holds: an attempt ends where it
// began, even if the list has changed since. A manager that has met another list refuses to be the home of new keys for a
// while. It meets lists in the calls of other homes, in the calls for its changes, and in the answers to its own such
// calls.
//
// What can go wrong has one of two answers. ErrUnavailable: the call did not reach the home, so it changed nothing.
// ErrUnanswered: the call may have reached it. The caller repeats the call with the same token, or releases it. The
// manager does neither by itself: a release of its own could overtake a caller that repeats its reserve.
package home
