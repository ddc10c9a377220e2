package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/oncegate/oncegate/manager/api"
)

// Bounds on requests. Larger values are rejected, never cut.
const (
	// MaxPayloadBytes bounds a job's payload.
	MaxPayloadBytes = 1 << 20
	// MaxResultBytes bounds a job's result.
	MaxResultBytes = 1 << 20
	// MaxErrorBytes bounds an error text.
	MaxErrorBytes = 64 << 10
	// MaxProposedIDBytes bounds the id that a submission may propose, and MaxIDBytes any id: the queue appends to the
	// ids of jobs that follow others.
	MaxProposedIDBytes, MaxIDBytes = 128, 160
	// MaxNameBytes bounds the names of functions and workers.
	MaxNameBytes = 128
	// MaxKeyBytes bounds a job's key and a dedup key.
	MaxKeyBytes = 255
	// MaxTokenBytes bounds a lease token.
	MaxTokenBytes = 64
	// MaxLimit bounds the jobs of one claim and the entries of one page.
	MaxLimit = 1000
	// MaxBatch bounds the submissions of one batch, and MaxBatchBytes the body of its request.
	MaxBatch, MaxBatchBytes = 128, 2 << 20
	// MaxBatchJobs bounds the jobs of a Batch.
	MaxBatchJobs = 1000
	// MaxFunctions bounds the functions of one claim.
	MaxFunctions = 100
	// MaxSubscriptions bounds the functions that subscribe to one event, and MaxEvents the events with subscriptions.
	MaxSubscriptions, MaxEvents = 100, 10_000
	// MaxSettings bounds how many functions may be paused, have limits, or have jobs with concurrency keys that have not
	// ended.
	MaxSettings = 5000
	// MaxLimitCount bounds the numbers of Limits, and MaxRatePer the time of a Rate.
	MaxLimitCount, MaxRatePer = 1_000_000, 24 * time.Hour
	// MaxAnswerBytes bounds the payloads and results of one page, and of the claims that share a transaction. The answer
	// ends before the job that would exceed it.
	MaxAnswerBytes = 8 << 20
	// MaxClaimBytes bounds the payloads of one claim in the same way, unless the first job exceeds it. Their leases run
	// while the worker takes the answer.
	MaxClaimBytes = 1 << 20
	// MaxAttempts bounds max_attempts.
	MaxAttempts = 1000
	// MinPriority and MaxPriority bound a priority.
	MinPriority, MaxPriority = -32768, 32767
	// MinLease and MaxLease bound a lease.
	MinLease, MaxLease = 100 * time.Millisecond, 24 * time.Hour
	// MaxDelay bounds how far ahead a job may be scheduled.
	MaxDelay = 366 * 24 * time.Hour
	// MinMaxBytes and MaxMaxBytes bound Options.MaxBytes. The least has room for some jobs of the largest size.
	MinMaxBytes, MaxMaxBytes = 8 << 20, 1 << 44
	// MaxWait bounds a long poll.
	MaxWait = 5 * time.Minute
	// MinDedupTTL and MaxDedupTTL bound a deduplication lock.
	MinDedupTTL, MaxDedupTTL = time.Second, 366 * 24 * time.Hour
	// MaxWALLocations bounds the databases of one job.
	MaxWALLocations = 16
	// MaxDatabaseBytes bounds a database's name, as Postgres does.
	MaxDatabaseBytes = 63
)

// CheckName returns an error unless v may name a function: 1 to MaxNameBytes letters, digits and _ . : - ~
func CheckName(field, v string) error { return checkWord(field, v, MaxNameBytes) }

// checkFilter allows the empty name as well.
func checkFilter(field, v string) error {
	if v == "" {
		return nil
	}
	return CheckName(field, v)
}

// CheckID returns an error unless v can be a job's id.
func CheckID(field, v string) error { return checkWord(field, v, MaxIDBytes) }

// reserved are the API's own path segments in the place of an id.
var reserved = []string{"batch", "bulk", "claim", "finish", "stats"}

// checkProposedID allows no id as well. It reserves ~ for ids that the queue makes, and the API's own path segments, which
// are in the place of an id.
func checkProposedID(v string) error {
	if v != "" && (strings.Contains(v, "~") || checkWord("id", v, MaxProposedIDBytes) != nil || slices.Contains(reserved, v)) {
		return invalid("id", v, "1 to "+strconv.Itoa(MaxProposedIDBytes)+" letters, digits and _ . : -, but not "+strings.Join(reserved, ", "))
	}
	return nil
}

// checkWord allows only characters that need no escaping in a URL's path.
func checkWord(field, v string, most int) error {
	ok := len(v) >= 1 && len(v) <= most
	for i := 0; ok && i < len(v); i++ {
		c := v[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '_' || c == '.' || c == ':' || c == '-' || c == '~'
	}
	// A URL's path cannot have these two as a segment.
	if !ok || v == "." || v == ".." {
		return invalid(field, v, "1 to "+strconv.Itoa(most)+" letters, digits and _ . : - ~")
	}
	return nil
}

// checkKey allows keys of at least least bytes.
func checkKey(field, v string, least int) error {
	if len(v) < least || v != "" && !api.ValidKey(v) {
		return invalid(field, v, fmt.Sprintf("%d to %d printable ASCII characters without a blank at either end", least, MaxKeyBytes))
	}
	return nil
}

// checkVisible allows least to most bytes of visible ASCII.
func checkVisible(field, v string, least, most int) error {
	if !api.Visible(v, least, most) {
		return invalid(field, v, fmt.Sprintf("%d to %d visible ASCII characters", least, most))
	}
	return nil
}

func checkRange[T int | int64](field string, v, least, most T) error {
	if v < least || v > most {
		return invalidInt(field, int64(v), fmt.Sprintf("%d to %d", least, most))
	}
	return nil
}

// PageLimit returns the limit of a page: 1 to MaxLimit, 100 when 0.
func PageLimit(limit int) (int, error) {
	limit = cmp.Or(limit, 100)
	return limit, checkRange("limit", limit, 1, MaxLimit)
}

func checkShare(field string, v float64) error {
	if v > 1 || v != v {
		return invalid(field, strconv.FormatFloat(v, 'g', -1, 64), "at most 1")
	}
	return nil
}

// checkTime allows the zero time, and those that all engines can store.
func checkTime(field string, v time.Time) error {
	if y := v.Year(); !v.IsZero() && (y < 1970 || y > 9999) {
		return invalid(field, v.Format(time.RFC3339), "a time in the years 1970 to 9999")
	}
	return nil
}

// checkDuration reports the duration in milliseconds, as on the wire.
func checkDuration(field string, v, least, most time.Duration) error {
	if v < least || v > most {
		return &FieldError{
			Field:   field,
			Value:   strconv.FormatFloat(float64(v)/float64(time.Millisecond), 'f', -1, 64) + " ms",
			Allowed: fmt.Sprintf("%d to %d ms", least.Milliseconds(), most.Milliseconds()),
		}
	}
	return nil
}

// checkOptional allows 0 as well.
func checkOptional(field string, v, least, most time.Duration) error {
	if v == 0 {
		return nil
	}
	return checkDuration(field, v, least, most)
}

func checkJSON(field string, v []byte, most int) error {
	if len(v) > most {
		return tooLarge(field, len(v), most)
	}
	if !validJSON(v) {
		return invalid(field, string(v), "one JSON value")
	}
	if api.CheckDepth(v, api.MaxJSONDepth) != nil {
		return invalid(field, string(v), "JSON nested at most "+strconv.Itoa(api.MaxJSONDepth)+" deep")
	}
	return checkUTF8(field, string(v))
}

// checkUTF8 refuses bytes that JSON cannot have (RFC 8259). The error shows where they are.
func checkUTF8(field, v string) error {
	if utf8.ValidString(v) {
		return nil
	}
	for at := 0; ; {
		r, n := utf8.DecodeRuneInString(v[at:])
		if r == utf8.RuneError && n == 1 {
			return invalid(field, v[max(0, at-20):], "text in UTF-8")
		}
		at += n
	}
}

// validJSON does what json.Valid does, in a third of the time.
func validJSON(v []byte) bool {
	const depth = 10000 // that of encoding/json
	return api.CheckJSON(v, depth) == nil
}

func checkError(v string) error {
	if len(v) > MaxErrorBytes {
		return tooLarge("error", len(v), MaxErrorBytes)
	}
	return checkUTF8("error", v)
}

// checkFunctions returns an error for a list that is too long or has a bad name.
func checkFunctions(fs []string) error {
	if len(fs) > MaxFunctions {
		return invalidInt("functions", int64(len(fs)), "at most "+strconv.Itoa(MaxFunctions)+" functions")
	}
	for _, f := range fs {
		if err := CheckName("functions", f); err != nil {
			return err
		}
	}
	return nil
}
