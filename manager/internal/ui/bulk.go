package ui

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"github.com/oncegate/oncegate/manager/internal/httpd"
)

// Bulk actions run side by side, so that engines with a durable log make several durable at once.
const bulkLanes, maxRefusals = 8, 20

// doBulk does a confirmed action, for as long as a page may take.
func (u *UI) doBulk(v *visit, d *bulkData) {
	ids := make(chan string)
	var mu sync.Mutex
	var lanes sync.WaitGroup
	for range bulkLanes {
		lanes.Go(func() {
			for id := range ids {
				var err error
				if v.ctx().Err() == nil {
					err = d.Action.run(v, id)
				}
				mu.Lock()
				switch {
				case v.ctx().Err() != nil && err == nil, errors.Is(err, v.ctx().Err()) && err != nil:
					d.NotTried++
				case err == nil:
					d.Done++
				case len(d.Refused) < maxRefusals:
					d.Refused = append(d.Refused, refusal{id, reasonOf(u, err)})
				default:
					d.MoreRefused++
				}
				mu.Unlock()
			}
		})
	}
	for _, id := range d.IDs {
		ids <- id
	}
	close(ids)
	lanes.Wait()
}

// reasonOf tells why something was refused, in words for the page.
func reasonOf(u *UI, err error) string {
	var p httpd.Problemer
	if errors.As(err, &p) {
		return p.Problem().Detail
	}
	u.opts.Log.Error("a bulk action failed", "error", err.Error())
	return "something went wrong, the manager's log says more"
}

// prettyJSON lays out a JSON value for reading; what is none stays as it is. More than maxShown bytes are cut, and not
// laid out: that can make them 65 times as long.
func prettyJSON(b []byte) string {
	var out bytes.Buffer
	if len(b) > maxShown {
		return strings.ToValidUTF8(string(b[:maxShown]), "")
	}
	if len(b) == 0 || json.Indent(&out, b, "", "  ") != nil {
		return string(b)
	}
	return out.String()
}
