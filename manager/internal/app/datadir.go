package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/oncegate/oncegate/manager/internal/quarantine"
	"github.com/oncegate/oncegate/manager/internal/settings"
	"github.com/oncegate/oncegate/manager/internal/ship"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// ownFiles match the names of what managers and oncegate restore keep in a data directory, and what a file system keeps at
// its top.
var ownFiles = []string{
	logFiles, mem.StateDir, "[0-9]*.snap", "[0-9]*.snap.tmp", "lock", sqliteFile + "*", quarantine.File + "*", shipHolder + "*", ship.PartialDir, "lost+found",
}

// foreignFiles returns the names of the other files in the data directory, without those that a setting names.
func foreignFiles(s *settings.Settings) []string {
	entries, err := os.ReadDir(s.DataDir)
	if err != nil {
		return nil // opening the store says it
	}
	var named []string
	for _, v := range s.Values() {
		if path, err := filepath.Abs(strings.TrimPrefix(v.Value, "unix:")); err == nil && v.Value != "" {
			named = append(named, path)
		}
	}
	var foreign []string
	for _, e := range entries {
		path, _ := filepath.Abs(filepath.Join(s.DataDir, e.Name()))
		own := slices.ContainsFunc(ownFiles, func(pattern string) bool {
			match, _ := filepath.Match(pattern, e.Name())
			return match
		})
		if !own && !slices.Contains(named, path) {
			foreign = append(foreign, e.Name())
		}
	}
	return foreign
}

// maxNames bounds the names in a line of the log.
const maxNames = 10

// logForeign logs that the data directory is not the manager's own.
func (a *app) logForeign() {
	if a.settings.DataDir == "" {
		return
	}
	if foreign := foreignFiles(a.settings); len(foreign) > 0 {
		a.log.Warn("--data-dir has files that no manager wrote: it should be a directory of its own",
			"dir", a.settings.DataDir, "count", len(foreign), "files", foreign[:min(len(foreign), maxNames)])
	}
}
