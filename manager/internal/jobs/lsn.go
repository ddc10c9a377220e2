package jobs

import (
	"slices"
	"strconv"
	"strings"
)

// LSN is a position in a Postgres write-ahead log.
type LSN uint64

// parseLSN reads the text form of Postgres: two hexadecimal numbers of up to 8 digits around a slash, for example
// 0/16B3748.
func parseLSN(field, text string) (LSN, error) {
	const allowed = "a Postgres LSN such as 0/16B3748"
	hi, lo, ok := strings.Cut(text, "/")
	if !ok || len(hi) > 8 || len(lo) > 8 || !isHex(hi) || !isHex(lo) {
		return 0, invalid(field, text, allowed)
	}
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if err1 != nil || err2 != nil {
		return 0, invalid(field, text, allowed)
	}
	return LSN(h<<32 | l), nil
}

// isHex rejects what ParseUint accepts besides digits, such as a sign.
func isHex(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return s != ""
}

// String returns the form that Postgres prints.
func (l LSN) String() string {
	return strings.ToUpper(strconv.FormatUint(uint64(l>>32), 16) + "/" + strconv.FormatUint(uint64(l&0xffffffff), 16))
}

// WALLocation is the position of one database.
type WALLocation struct {
	Database string
	LSN      LSN
}

// WALLocations are positions sorted by database, each database once.
type WALLocations []WALLocation

// ParseWALLocations reads the wire form, a map of database names (1 to
// MaxDatabaseBytes of visible ASCII) to LSNs.
func ParseWALLocations(m map[string]string) (WALLocations, error) {
	if len(m) == 0 {
		return nil, nil
	}
	if len(m) > MaxWALLocations {
		return nil, invalidInt("wal_locations", int64(len(m)), "at most "+strconv.Itoa(MaxWALLocations)+" databases")
	}
	w := make(WALLocations, 0, len(m))
	for db, text := range m {
		if err := checkVisible("wal_locations", db, 1, MaxDatabaseBytes); err != nil {
			return nil, err
		}
		lsn, err := parseLSN("wal_locations."+db, text)
		if err != nil {
			return nil, err
		}
		w = append(w, WALLocation{db, lsn})
	}
	w.sort()
	return w, nil
}

func (w WALLocations) sort() {
	slices.SortFunc(w, func(a, b WALLocation) int { return strings.Compare(a.Database, b.Database) })
}

// Map returns the wire form, nil when empty.
func (w WALLocations) Map() map[string]string {
	if len(w) == 0 {
		return nil
	}
	m := make(map[string]string, len(w))
	for _, l := range w {
		m[l.Database] = l.LSN.String()
	}
	return m
}

// check rejects locations that ParseWALLocations would not have returned.
func (w WALLocations) check() error {
	if len(w) > MaxWALLocations {
		return invalidInt("wal_locations", int64(len(w)), "at most "+strconv.Itoa(MaxWALLocations)+" databases")
	}
	for i, l := range w {
		if err := checkVisible("wal_locations", l.Database, 1, MaxDatabaseBytes); err != nil {
			return err
		}
		if i > 0 && w[i-1].Database >= l.Database {
			return invalid("wal_locations", l.Database, "databases in order, each once")
		}
	}
	return nil
}

// merge returns, for every database of w and o, the later position, and whether that differs from w. More than
// MaxWALLocations together are an error: dropping one could let a job read a replica that lags behind.
func (w WALLocations) merge(o WALLocations) (merged WALLocations, changed bool, err error) {
	merged = slices.Clone(w)
	for _, l := range o {
		i, found := slices.BinarySearchFunc(merged, l.Database, func(a WALLocation, db string) int {
			return strings.Compare(a.Database, db)
		})
		switch {
		case found && merged[i].LSN < l.LSN:
			merged[i].LSN, changed = l.LSN, true
		case !found:
			merged, changed = slices.Insert(merged, i, l), true
		}
	}
	if len(merged) > MaxWALLocations {
		return nil, false, invalidInt("wal_locations", int64(len(merged)),
			"at most "+strconv.Itoa(MaxWALLocations)+" databases together with those of the job that is kept")
	}
	return merged, changed, nil
}
