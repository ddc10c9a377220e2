package server

import (
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
	"github.com/oncegate/oncegate/manager/internal/scrape"
)

// NewLogsCollector returns a collector of what is known of each log. There are few, as the engine bounds them.
func NewLogsCollector(engine *storelogs.Engine) *scrape.Collector {
	return scrape.New(func(m scrape.Sample) error {
		infos, err := engine.List(m.Context, "", 10_000)
		if err != nil {
			return nil // the engine is away
		}
		for i := range infos {
			l := &infos[i]
			for _, x := range []struct {
				outcome string
				n       uint64
			}{{"appended", l.Appended}, {"duplicate", l.Duplicates}, {"mismatch", l.Mismatches}, {"gap", l.Gaps}, {"fenced", l.Fenced}, {"refused", l.Refused}} {
				scrape.Set(m, "oncegate_logs_appends_total", x.n, l.Name, x.outcome)
			}
			scrape.Set(m, "oncegate_logs_window_keys", l.Keys, l.Name)
			scrape.Set(m, "oncegate_logs_window_bytes", l.WindowBytes, l.Name)
			scrape.Set(m, "oncegate_logs_window_evicted_total", l.Evicted, l.Name)
			scrape.Set(m, "oncegate_logs_window_evicted_age_seconds", l.EvictedAge.Seconds(), l.Name)
			scrape.Set(m, "oncegate_logs_entries", l.Last+1-l.First, l.Name)
			scrape.Set(m, "oncegate_logs_disk_bytes", l.DiskBytes, l.Name)
			scrape.Set(m, "oncegate_logs_failed", map[bool]int{true: 1}[l.Failed != ""], l.Name)
			scrape.Set(m, "oncegate_logs_readers", l.Readers, l.Name)
		}
		return nil
	},
		scrape.Describe("oncegate_logs_appends_total", "Entries that writers asked to append, by outcome.", "log", "outcome"),
		scrape.Describe("oncegate_logs_window_keys", "Ids, or clients, that the window holds.", "log"),
		scrape.Describe("oncegate_logs_window_bytes", "Memory that the window takes.", "log"),
		scrape.Describe("oncegate_logs_window_evicted_total", "Ids forgotten before their time, as the window was full.", "log"),
		scrape.Describe("oncegate_logs_window_evicted_age_seconds", "Age of the id that was forgotten last before its time; 0 before there was one.", "log"),
		scrape.Describe("oncegate_logs_entries", "Entries that are kept.", "log"),
		scrape.Describe("oncegate_logs_disk_bytes", "Disk that the log takes.", "log"),
		scrape.Describe("oncegate_logs_failed", "1 when the log cannot be read, so that it refuses all calls.", "log"),
		scrape.Describe("oncegate_logs_readers", "Readers that are held.", "log"))
}
