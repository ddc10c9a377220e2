package jobstest

import "testing"

func testProperty(t *testing.T, e Engine) {}
