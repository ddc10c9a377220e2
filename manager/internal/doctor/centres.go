package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/oncegate/oncegate/manager/api/schema"
)

const (
	checkPeers     = "manager: peers"
	checkConflicts = "manager: conflicts"
)

// peerLag is a lag that is more than a busy moment.
const peerLag = time.Minute

// maxConflicts is how many conflicts are counted.
const maxConflicts = 1000

// centres looks at the other data centres of a manager that has an origin.
func (t Target) centres(ctx context.Context, r *report) {
	var p schema.Peers
	if !t.read(ctx, r, checkPeers, "/v1/peers", &p) || p.Origin == "" {
		return
	}
	before := len(r.findings)
	for _, peer := range p.Peers {
		name, lag := oneLine(peer.Name), peer.Lag.Round(time.Second)
		switch {
		case peer.Error != "":
			r.fail(checkPeers, fmt.Sprintf("outcomes of %s are missing, and retries of such keys run again here: %s", name, oneLine(peer.Error)),
				"oncegate peers status, and see whether the peer runs, can be reached and takes the token of --peer-token-file, and whether the window has room")
		case lag > peerLag:
			r.fail(checkPeers, fmt.Sprintf("not everything of %s has been here for %s, and retries of such keys run again here", name, lag), "oncegate peers status, and the manager's log")
		}
	}
	if p.Refuses != "" {
		r.fail(checkPeers, oneLine(p.Refuses), "oncegate peers status, and the same --origin and --peer names everywhere")
	}
	r.okUnless(before, checkPeers, "%s has everything of %s", oneLine(p.Origin), many(len(p.Peers), "peer"))

	var list schema.ConflictPage
	if !t.read(ctx, r, checkConflicts, fmt.Sprintf("/v1/ledger/conflicts?limit=%d", maxConflicts), &list) {
		return
	}
	n := len(list.Conflicts)
	if n == 0 {
		r.ok(checkConflicts, "none")
		return
	}
	found := plural(int64(n), "1 key ran in several data centres", "%d keys ran in several data centres")
	if list.Cursor != "" {
		found = "at least " + found
	}
	r.fail(checkConflicts, fmt.Sprintf("%s, such as %.200q", found, list.Conflicts[0].Key), "oncegate ledger conflicts, and settle at the upstream what ran twice")
}
