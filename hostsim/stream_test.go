package hostsim_test

import (
	"testing"

	"github.com/oncegate/oncegate/hostsim"
	"github.com/oncegate/oncegate/hostsim/hostsimtest"
)

// A filter that continues everywhere changes nothing.
func TestFilterThatContinuesChangesNothing(t *testing.T) {
	eachGuest(t, func(r *rig) {
		r.start(hostsim.Config{})
		s := r.run("rh=;rb=;sh=;sb=;log=;sdone=;delete=", "abc", "def")
		want(r, "upstream", s.Up.Log(), `headers POST /x | data "abc" | data "def" | data "" end`)
		s.Respond(200, "hello")
		s.Settle()
		want(r, "downstream", s.Down.Log(), `headers 200 | data "hello" | data "" end`)
		want(r, "over", s.Over(), true)
		r.wantLog("worker-0", "rh 7", "rb 3", "rb 3", "rb 0 end", "sh 1", "sb 5", "sb 0 end", "log 0", "sdone 0", "delete 0")
		hostsimtest.Healthy(r, r.h)
	})
}
