package jobs

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxErrorGroupBytes bounds what ErrorGroup returns.
const MaxErrorGroupBytes = 160

// MaxErrorTextBytes bounds ListQuery.ErrorText.
const MaxErrorTextBytes = 200

// ErrorGroup returns what errors of one kind have in common: their first line, in which # stands for each word of four
// or more letters and digits that has a digit, such as an id or a time. It is at most MaxErrorGroupBytes long. The
// group of a group is the group itself.
func ErrorGroup(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = text[:min(len(text), 4*MaxErrorGroupBytes)]
	var b strings.Builder
	for i := 0; i < len(text) && b.Len() < MaxErrorGroupBytes; {
		end, digit := i, false
		for end < len(text) && isWord(text[end]) {
			digit = digit || text[end] >= '0' && text[end] <= '9'
			end++
		}
		switch {
		case digit && end-i >= 4:
			b.WriteByte('#')
		case end > i:
			b.WriteString(text[i:end])
		default:
			_, end = utf8.DecodeRuneInString(text[i:])
			end += i
			b.WriteString(text[i:end])
		}
		i = end
	}
	out := b.String()
	return strings.TrimSpace(strings.ToValidUTF8(out[:min(len(out), MaxErrorGroupBytes)], ""))
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// check returns an error for a query that cannot be answered.
func (l *ListQuery) check() error {
	err := cmp.Or(
		checkRange("limit", l.Limit, 1, MaxLimit), checkFilter("function", l.Function),
		checkVisible("submitter", l.Owner, 0, MaxNameBytes), checkKey("key", l.Key, 0), checkKey("concurrency_key", l.ConcurrencyKey, 0), checkError(l.Error),
		checkDuration("older_than_ms", l.OlderThan, 0, MaxDelay), checkDuration("newer_than_ms", l.NewerThan, 0, MaxDelay),
	)
	switch {
	case err != nil:
		return err
	case l.State > Expired:
		return invalidInt("state", int64(l.State), "a state")
	case len(l.ErrorText) > MaxErrorTextBytes:
		return tooLarge("error_text", len(l.ErrorText), MaxErrorTextBytes)
	case l.NewerThan != 0 && l.NewerThan <= l.OlderThan:
		return invalidInt("newer_than_ms", l.NewerThan.Milliseconds(), fmt.Sprintf("more than older_than_ms, which is %d", l.OlderThan.Milliseconds()))
	}
	return nil
}

// has reports whether the query selects a job of its function and state.
func (l *ListQuery) has(r *record, at time.Time) bool {
	since := r.FinishedAt
	if since.IsZero() {
		since = r.CreatedAt
	}
	return (l.Owner == "" || r.Owner == l.Owner) && (l.Key == "" || r.Key == l.Key) &&
		(l.ConcurrencyKey == "" || r.ConcurrencyKey == l.ConcurrencyKey) && (l.OlderThan == 0 || !since.After(at.Add(-l.OlderThan))) &&
		(l.NewerThan == 0 || since.After(at.Add(-l.NewerThan))) &&
		(l.Error == "" || r.Error != "" && ErrorGroup(r.Error) == ErrorGroup(l.Error)) &&
		(l.ErrorText == "" || strings.Contains(strings.ToLower(r.Error), strings.ToLower(l.ErrorText)))
}
