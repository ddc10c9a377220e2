package e2e

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/oncegate/oncegate/manager/managertest/deep"
)

// heapFloor is what the program's collector takes for live in addition to what is.
const heapFloor = 64 << 20

var nextCollection = regexp.MustCompile(`(?m)^go_memstats_next_gc_bytes (\S+)$`)

// A manager whose heap is small does not collect after each few megabytes. The environment still decides.
func TestSmallHeapIsCollectedSeldom(t *testing.T) {
	deep.Quick(t)
	for _, test := range []struct {
		name, value string
		floor       bool
	}{{"GOGC", "", true}, {"GOGC", "100", false}, {"GOMEMLIMIT", "1GiB", false}} {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			t.Setenv("GOGC", "")
			t.Setenv("GOMEMLIMIT", "")
			t.Setenv(test.name, test.value)
			p := startManager(t, "--admin", "127.0.0.1:0", "--store", "memory")
			next := func() int {
				resp, err := http.Get("http://" + p.addr["admin"] + "/metrics")
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				found := nextCollection.FindSubmatch(text)
				if found == nil {
					t.Fatalf("no time of the next collection in\n%s", text)
				}
				bytes, err := strconv.ParseFloat(string(found[1]), 64)
				if err != nil {
					t.Fatal(err)
				}
				return int(bytes)
			}
			if test.floor {
				waitFor(t, "a collection at twice the floor", func() bool { return next() >= 2*heapFloor })
			} else if n := next(); n >= heapFloor {
				t.Errorf("the next collection comes at %d bytes", n)
			}
		})
	}
}
