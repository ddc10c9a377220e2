package walogs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/internal/logs"
)

// TestRetention deletes what is too old or too much, gives the disk back, tells a reader that it was
// overtaken, and keeps the ids of the window.
func TestRetention(t *testing.T) {
	retain := time.Minute
	r := newRig(t, logs.Change{Retain: &retain})
	id := func(i int) logs.Item { return entry(fmt.Sprint(i), strings.Repeat("p", 2000)) }
	for i := 1; i <= 200; i++ {
		r.put(id(i))
	}
	before := r.log().info().DiskBytes
	r.clock.advance(30 * time.Second)
	for i := 201; i <= 300; i++ {
		r.put(id(i))
	}
	r.log().duty(t.Context())
	if first := r.log().info().First; first != 1 {
		t.Errorf("the first entry is %d before anything is too old", first)
	}
	r.clock.advance(30 * time.Second)
	r.log().duty(t.Context())
	info := r.log().info()
	if info.First < 100 || info.First > 201 || info.DiskBytes >= before {
		t.Errorf("the first entry is %d, the log takes %d bytes, it took %d", info.First, info.DiskBytes, before)
	}
	if _, err := r.Read(t.Context(), "log", logs.Query{After: 0}); code(err) != "cursor-gone" {
		t.Errorf("a reader that was overtaken: %v", err)
	}
	if _, err := r.ByID(t.Context(), "log", "1"); code(err) != "not-found" {
		t.Errorf("by-id of an entry that was deleted: %v", err)
	}
	r.crash()
	r.expect("1 again, 300 again", id(1), id(300))
	if all := r.all(); all[0].Number != info.First || all[len(all)-1].Number != 300 {
		t.Errorf("the log holds %d to %d", all[0].Number, all[len(all)-1].Number)
	}
	r.clock.advance(time.Minute)
	r.log().duty(t.Context())
	if info := r.log().info(); info.First != 301 || info.Last != 300 {
		t.Errorf("the log holds %d to %d when all is too old", info.First, info.Last)
	}
	r.restart()
	r.expect("301", entry("new", ""))
	if got := r.ids(); !strings.HasSuffix(got, "new") {
		t.Errorf("the log holds %s", got)
	}
}
