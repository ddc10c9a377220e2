// Package azuretest has a server with Azure Blob Storage's interface, for tests of the program outside of the manager's packages.
package azuretest

import (
	"testing"

	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
)

// Container is the one that the server has.
const Container = objecttest.Bucket

// Start starts the server in this process, which ends with the test. It keeps objects in memory. It returns the environment, as
// NAME=VALUE, with which a process reaches its container.
func Start(t testing.TB) []string { return objecttest.NewAzure(t).Environ() }
