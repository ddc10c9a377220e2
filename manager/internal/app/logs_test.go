package app

import (
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/store"
)

type capable struct {
	store.Store
	caps store.Capabilities
}

func (c capable) Capabilities() store.Capabilities { return c.caps }

// TestNoLogsWhereTheyMayBeLost: a server that may lose what it acknowledged keeps no logs, and the answer says why.
func TestNoLogsWhereTheyMayBeLost(t *testing.T) {
	for why, a := range map[string]*app{
		"appendfsync always": {settings: &settings.Settings{Store: "redis", MaxLogs: 1}, store: capable{caps: store.Capabilities{Name: "redis", Shared: true}}},
		"--max-logs is 0":    {settings: &settings.Settings{Store: "wal"}, store: capable{}},
	} {
		if err := a.openLogs(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a.logs != nil || !strings.Contains(a.noLogs, why) {
			t.Errorf("there are logs: %v; there are none because %q, want %s", a.logs != nil, a.noLogs, why)
		}
	}
}
