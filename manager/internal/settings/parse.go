package settings

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// UsageError is a mistake in how the program was started: a flag, a variable or a file that they
// name. The program prints it on one line and ends with exit code 2.
type UsageError struct{ msg string }

func (e *UsageError) Error() string { return e.msg }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

// MaxSeconds is 366 days, the longest duration of most settings.
const MaxSeconds = 31622400

// Choice parses one of the allowed values.
func Choice[S ~string](allowed []S, to *S) func(string) error {
	return func(v string) error {
		if !slices.Contains(allowed, S(v)) {
			var names []string
			for _, a := range allowed {
				names = append(names, string(a))
			}
			return errors.New("must be one of " + strings.Join(names, ", "))
		}
		*to = S(v)
		return nil
	}
}

// Number parses a whole number of the range.
func Number[T int | int64](least, most int64, to *T) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		*to = T(n)
		return nil
	}
}

// Seconds parses a number of seconds of the range, which may have decimals.
func Seconds(least, most float64, to *time.Duration) func(string) error {
	return func(v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || math.IsNaN(f) || f < least || f > most {
			return fmt.Errorf("must be a number of seconds from %v to %v", least, strconv.FormatFloat(most, 'f', -1, 64))
		}
		*to = time.Duration(math.Round(f * float64(time.Second)))
		return nil
	}
}
