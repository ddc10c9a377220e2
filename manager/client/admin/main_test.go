package admin_test

import (
	"flag"
	"log"
	"testing"
)

// TestMain skips the examples where no manager is named. TestExamplesHoldForAManager of manager/internal/clienttest names one.
func TestMain(m *testing.M) {
	flag.Parse()
	if managerURL == "" {
		if err := flag.Set("test.skip", "^Example"); err != nil {
			log.Fatal(err)
		}
	}
	m.Run()
}
