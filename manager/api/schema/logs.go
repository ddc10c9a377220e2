package schema

import "time"

// LogConfig is how a log is made, or changed: fields that are zero stay as they are.
type LogConfig struct {
	// Identity: "ids", the default, or "structured"; it does not change.
	Identity string `json:"identity,omitempty"`
	// Window is how long an id is remembered, MaxKeys how many ids are, MaxBytes how many
	// bytes they may have.
	Window   time.Duration `json:"window_ms,omitempty"`
	MaxKeys  int           `json:"max_keys,omitempty"`
	MaxBytes int64         `json:"max_bytes,omitempty"`
	// WhenFull: "evict", the default, forgets the oldest id early, "refuse" refuses new ones.
	WhenFull string `json:"when_full,omitempty"`
	// Retain is how long entries are kept, RetainBytes how much of the log is.
	Retain      time.Duration `json:"retain_ms,omitempty"`
	RetainBytes int64         `json:"retain_bytes,omitempty"`
}

// MarshalJSON encodes the configuration as the API takes it.
func (c LogConfig) MarshalJSON() ([]byte, error) { return Append(nil, &c), nil }

// UnmarshalJSON decodes a configuration of the API.
func (c *LogConfig) UnmarshalJSON(b []byte) error { return Unmarshal(b, c) }

// LogChange is a LogConfig as it is read. What is nil was not sent, and 0 is a value.
type LogChange struct {
	Identity    *string        `json:"identity,omitempty" enum:"ids,structured"`
	Window      *time.Duration `json:"window_ms,omitempty"`
	MaxKeys     *int           `json:"max_keys,omitempty"`
	MaxBytes    *int64         `json:"max_bytes,omitempty"`
	WhenFull    *string        `json:"when_full,omitempty" enum:"evict,refuse"`
	Retain      *time.Duration `json:"retain_ms,omitempty"`
	RetainBytes *int64         `json:"retain_bytes,omitempty"`
}

// LogInfo describes a log.
type LogInfo struct {
	Log    string    `json:"log"`
	Config LogConfig `json:"config" whole:"true"`
	// First and Last are the numbers of the oldest and newest entry; First is Last+1 when there
	// is none.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Keys are the ids in the window, WindowBytes what they take. Evicted ids were forgotten
	// before their time since the manager started, the last of them at the age EvictedAge.
	Keys        int           `json:"keys"`
	WindowBytes int64         `json:"window_bytes"`
	Evicted     uint64        `json:"evicted"`
	EvictedAge  time.Duration `json:"evicted_age_ms"`
	Writers     int           `json:"writers"`
	DiskBytes   int64         `json:"disk_bytes"`
	// Failed is why the log takes no appends; empty when it does.
	Failed string `json:"failed,omitempty"`
}

// MarshalJSON encodes in the form of the API.
func (i LogInfo) MarshalJSON() ([]byte, error) { return Append(nil, &i), nil }

// UnmarshalJSON decodes the form of the API.
func (i *LogInfo) UnmarshalJSON(b []byte) error { return Unmarshal(b, i) }

// LogPage is one page of logs; Cursor is empty on the last one.
type LogPage struct {
	Logs   []LogInfo `json:"logs"`
	Cursor string    `json:"cursor"`
}

// LogDeleted is the answer to the call that removes a log or, with Writer, a writer.
type LogDeleted struct {
	Log     string `json:"log,omitempty"`
	Writer  string `json:"writer,omitempty"`
	Deleted bool   `json:"deleted"`
}

// LogMessageID is where an entry is. Entry numbers the entries of a log from 1.
type LogMessageID struct {
	Segment uint64 `json:"segment"`
	Entry   uint64 `json:"entry"`
}

// LogEntry is an entry as readers get it.
type LogEntry struct {
	LogMessageID
	ID         string            `json:"id"`
	Payload    []byte            `json:"payload"`
	Properties map[string]string `json:"properties"`
}

// LogEntries is a page of entries, which may have none. Cursor leads to the next one, always.
type LogEntries struct {
	Entries []LogEntry `json:"entries"`
	Cursor  string     `json:"cursor"`
}

// LogItem is an entry as writers send it.
type LogItem struct {
	Payload    []byte            `json:"payload"`
	ID         *string           `json:"id,omitempty" text:"unicode"`
	Derive     string            `json:"derive,omitempty" enum:"md5,sha256"`
	Properties map[string]string `json:"properties,omitempty" text:"unicode"`
	Writer     *string           `json:"writer,omitempty" text:"unicode"`
	Epoch      uint64            `json:"epoch,omitempty" zero:"must be a whole number, at least 1" wrong:"must be a whole number, at least 1"`
}

// LogItems are a batch, each entry a LogItem that is parsed by itself.
type LogItems struct {
	Entries []Value `json:"entries" max:"1024" wrong:"must be an array"`
	// Atomic: all entries are written or none.
	Atomic bool `json:"atomic,omitempty"`
}

// LogAppended is the answer to the append of one entry. A duplicate whose number is not known any more has no Entry.
type LogAppended struct {
	Status    int    `json:"status,omitempty"` // in a batch
	Log       string `json:"log"`
	Segment   uint64 `json:"segment,omitempty"`
	Entry     uint64 `json:"entry,omitempty"`
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate,omitempty"`
}

// LogWriter is a writer of a log and its newest epoch.
type LogWriter struct {
	Writer string `json:"writer"`
	Epoch  uint64 `json:"epoch"`
}

// LogWriterRequest begins the next epoch of a writer.
type LogWriterRequest struct {
	Writer *string `json:"writer" text:"unicode"`
}

// LogWriterPage is one page of writers; Cursor is empty on the last one.
type LogWriterPage struct {
	Writers []LogWriter `json:"writers"`
	Cursor  string      `json:"cursor"`
}
