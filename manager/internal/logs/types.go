package logs

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
)

// Bounds of what a caller may ask for.
const (
	MaxNameBytes       = 128
	MaxIDBytes         = 255
	MaxWriterBytes     = 255
	MaxPayloadBytes    = 1 << 20
	MaxBatchEntries    = 1024
	MaxProperties      = 64
	MaxPropertiesBytes = 16 << 10 // names and values together
	MaxWriters         = 4096     // of one log
	MaxLimit           = 10_000   // entries of one page
	DefaultLimit       = 100
	MaxWait            = time.Minute // that a reader is held
	MaxPageBytes       = 1 << 20     // of ids, payloads and properties in a page, one entry more
)

// Bounds of a log's configuration.
const (
	MinWindow   = time.Second
	MaxWindow   = 366 * 24 * time.Hour
	MaxRetain   = 366 * 24 * time.Hour
	MaxMaxKeys  = 16 << 20
	MinMaxBytes = 64 << 10
	MaxMaxBytes = 1 << 32
	MinRetained = 1 << 20
	MaxRetained = 1 << 44
)

// Identity says what ids a log takes.
type Identity uint8

// IDs are any strings; Structured ones are {client}:{sequence}:{nonce}.
const (
	IDs Identity = iota
	Structured
)

func (i Identity) String() string {
	if i == Structured {
		return "structured"
	}
	return "ids"
}

// ParseIdentity is the inverse of String.
func ParseIdentity(s string) (Identity, bool) {
	if s == Structured.String() {
		return Structured, true
	}
	return IDs, s == IDs.String()
}

// Derive names how an id is made from the payload.
type Derive uint8

// NoDerive takes the id that is given, if any.
const (
	NoDerive Derive = iota
	DeriveMD5
	DeriveSHA256
)

// ParseDerive reads md5 or sha256. All else is NoDerive.
func ParseDerive(s string) Derive {
	switch s {
	case "md5":
		return DeriveMD5
	case "sha256":
		return DeriveSHA256
	}
	return NoDerive
}

// Config is how a log was made. All of it but Identity can be changed.
type Config struct {
	Identity Identity
	// Window is how long an id is remembered, MaxKeys how many are at most, MaxBytes what
	// they may take in memory.
	Window   time.Duration
	MaxKeys  int
	MaxBytes int64
	// RefuseWhenFull refuses new ids when the window is full of ids that have not expired.
	// Else the oldest one is forgotten early.
	RefuseWhenFull bool
	// Retain is how long an entry is kept at least, RetainBytes how much of the log. 0: all.
	Retain      time.Duration
	RetainBytes int64
}

// DefaultConfig is what a log is made with that names nothing.
func DefaultConfig() Config {
	return Config{Window: 5 * time.Minute, MaxKeys: 1_000_000, MaxBytes: 128 << 20, Retain: 7 * 24 * time.Hour, RetainBytes: 1 << 30}
}

// Change is a configuration in which fields may be missing: these stay as they are.
type Change struct {
	Identity            *Identity
	Window, Retain      *time.Duration
	MaxKeys             *int
	MaxBytes, RetainLen *int64
	RefuseWhenFull      *bool
	// MakeOnly refuses to change a log that is there: Put makes one, or finds it as the change
	// says.
	MakeOnly bool
}

// Apply returns the configuration after the change, or a *api.FieldError. Identity is for
// the caller to compare.
func (c Config) Apply(ch Change) (Config, error) {
	if ch.Identity != nil {
		c.Identity = *ch.Identity
	}
	if ch.RefuseWhenFull != nil {
		c.RefuseWhenFull = *ch.RefuseWhenFull
	}
	err := cmp.Or(
		change("window_ms", &c.Window, ch.Window, time.Millisecond, MinWindow, MaxWindow, ""),
		change("max_keys", &c.MaxKeys, ch.MaxKeys, 1, 1, MaxMaxKeys, ""),
		change("max_bytes", &c.MaxBytes, ch.MaxBytes, 1, MinMaxBytes, MaxMaxBytes, ""),
		change("retain_ms", &c.Retain, ch.Retain, time.Millisecond, time.Second, MaxRetain, noLimit),
		change("retain_bytes", &c.RetainBytes, ch.RetainLen, 1, MinRetained, MaxRetained, noLimit),
	)
	return c, err
}

// noLimit, as the last argument of change, allows 0.
const noLimit = ", or 0 for no limit"

// change sets a field that the change has, if its value is from least to most. Messages have values in units.
func change[T int | int64 | time.Duration](field string, to, v *T, unit, least, most T, zero string) error {
	if v == nil {
		return nil
	}
	if (*v < least || *v > most) && (*v != 0 || zero == "") {
		return &api.FieldError{Field: field, Value: strconv.FormatInt(int64(*v/unit), 10),
			Allowed: fmt.Sprintf("must be %d to %d%s", int64(least/unit), int64(most/unit), zero)}
	}
	*to = *v
	return nil
}

// Property is a name and value that come with an entry.
type Property struct{ Name, Value string }

// Item is an entry to append. Nothing in it may be changed until Append returned.
type Item struct {
	ID         string
	Derive     Derive
	Payload    []byte
	Properties []Property // in ascending order of their names
	// Writer and Epoch, when Writer is not empty: the entry is refused unless this is the
	// writer's newest epoch.
	Writer string
	Epoch  uint64
	// Err, when set, says why the item is refused unseen.
	Err error
}

// Outcome is what became of an Item.
type Outcome struct {
	// Number of the entry, counted from 1 in each log. 0 with Duplicate: it was written, and
	// its number is not known any more.
	Number    uint64
	ID        string
	Duplicate bool
	// Err is why the item was refused; nothing was written for it then.
	Err error
}

// Entry is an entry as readers get it.
type Entry struct {
	Number     uint64
	ID         string
	Payload    []byte
	Properties []Property
}

// Bytes is what of the entry counts toward MaxPageBytes.
func (e *Entry) Bytes() int {
	n := len(e.ID) + len(e.Payload)
	for _, p := range e.Properties {
		n += len(p.Name) + len(p.Value)
	}
	return n
}

// SegmentEntries is how many entries have the same segment number.
const SegmentEntries = 1 << 16

// SegmentOf is the segment number of an entry: entries come in segments of SegmentEntries.
func SegmentOf(number uint64) uint64 {
	if number == 0 {
		return 0
	}
	return (number-1)/SegmentEntries + 1
}

// Page is what a reader gets.
type Page struct {
	Entries []Entry
	// Cursor is the number of the last entry before the next page.
	Cursor uint64
}

// Query is what a reader asks for.
type Query struct {
	// After is a cursor; Beginning, when set, stands for the oldest entry that is kept.
	After     uint64
	Beginning bool
	// Limit is at most MaxLimit, DefaultLimit when 0.
	Limit int
	// Wait bounds how long the call waits for an entry when there is none.
	Wait time.Duration
}

// Writer is a writer and its newest epoch.
type Writer struct {
	Name  string
	Epoch uint64
}

// Info describes a log.
type Info struct {
	Name   string
	Config Config
	// First is the number of the oldest entry that is kept, Last of the newest one: First is
	// Last+1 when there is none.
	First, Last uint64
	// Keys are the ids, or clients, in the window, WindowBytes what they take, Evicted how
	// many were forgotten before their time since the start, and EvictedAge how old the last
	// of them was.
	Keys        int
	WindowBytes int64
	Evicted     uint64
	EvictedAge  time.Duration
	Writers     int
	DiskBytes   int64
	// Failed is why the log cannot be read, empty when it can.
	Failed string
	Counters
}

// Counters of a log since the start.
type Counters struct {
	Appended, Duplicates, Mismatches, Gaps, Fenced, Refused uint64
	Readers                                                 int // held right now
}

// CheckName checks that name can be a log's. The error is a *api.FieldError.
func CheckName(name string) error {
	ok := len(name) >= 1 && len(name) <= MaxNameBytes && name[0] != '.' && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	})
	if !ok {
		return &api.FieldError{Field: "log", Value: shorten(name),
			Allowed: fmt.Sprintf("must be 1 to %d letters, digits, dots, dashes and underscores of ASCII, and not begin with a dot", MaxNameBytes)}
	}
	return nil
}

// CheckWriter checks that name can be a writer's. The error is a *api.FieldError.
func CheckWriter(name string) error {
	if len(name) < 1 || len(name) > MaxWriterBytes {
		return &api.FieldError{Field: "writer", Value: shorten(name), Allowed: fmt.Sprintf("must be 1 to %d bytes", MaxWriterBytes)}
	}
	return nil
}

func shorten(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}
