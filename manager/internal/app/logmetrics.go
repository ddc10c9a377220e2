package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/oncegate/oncegate/manager/internal/scrape"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
	"github.com/oncegate/oncegate/manager/internal/wal"
)

// logMetrics are the numbers of the write-ahead log.
type logMetrics struct {
	log         *wal.Log
	store       *mem.Store
	fsync       prometheus.Histogram
	records     prometheus.Histogram
	bytes       prometheus.Histogram
	stateErrors prometheus.Counter
}

func newLogMetrics() *logMetrics {
	return &logMetrics{
		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "oncegate_wal_fsync_duration_seconds", Help: "Time of one fdatasync.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 14),
		}),
		records: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "oncegate_wal_batch_records", Help: "Transactions that one fdatasync made durable.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		}),
		bytes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "oncegate_wal_batch_bytes", Help: "Bytes that one fdatasync made durable.",
			Buckets: prometheus.ExponentialBuckets(256, 4, 10),
		}),
		stateErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oncegate_state_write_errors_total", Help: "Writes of the state on disk that failed and are tried again.",
		}),
	}
}

// batch counts a group commit.
func (m *logMetrics) batch(b wal.Batch) {
	m.fsync.Observe(b.Sync.Seconds())
	m.records.Observe(float64(b.Records))
	m.bytes.Observe(float64(b.Bytes))
}

func (m *logMetrics) collectors() []prometheus.Collector {
	now := scrape.New(func(o scrape.Sample) error {
		s := m.log.Stats()
		scrape.Set(o, "oncegate_wal_disk_bytes", s.DiskBytes)
		scrape.Set(o, "oncegate_wal_segments", s.Segments)
		scrape.Set(o, "oncegate_wal_log_bytes", s.LogBytes)
		scrape.Set(o, "oncegate_wal_queue_bytes", s.QueueBytes)
		scrape.Set(o, "oncegate_state_disk_bytes", m.store.StateBytes())
		scrape.Set(o, "oncegate_wal_undeleted_files", s.Undeleted)
		scrape.Set(o, "oncegate_wal_no_space", map[bool]int{true: 1}[s.NoSpace])
		return nil
	},
		scrape.Describe("oncegate_wal_disk_bytes", "Space taken by segments."),
		scrape.Describe("oncegate_wal_segments", "Segments in use."),
		scrape.Describe("oncegate_wal_log_bytes", "Bytes of the log that the state on disk does not have, which a start must replay."),
		scrape.Describe("oncegate_wal_queue_bytes", "Bytes that were appended and are not durable yet."),
		scrape.Describe("oncegate_state_disk_bytes", "Space taken by the state."),
		scrape.Describe("oncegate_wal_undeleted_files", "Log files that are no longer needed and cannot be deleted."),
		scrape.Describe("oncegate_wal_no_space", "1 while the disk is full."))
	return []prometheus.Collector{m.fsync, m.records, m.bytes, m.stateErrors, now}
}
