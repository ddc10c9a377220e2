package batch

// Split runs calls together. If that fails with an error that may be that of one call, which ofOne reports, each half runs
// by itself instead, and so on down to single calls. So one call does not affect the others. The order is kept. done gets
// each call once, with the error of the last run that it was in.
func Split[T any](calls []T, run func([]T) error, ofOne func(error) bool, done func([]T, error)) {
	err := run(calls)
	if err == nil || len(calls) < 2 || !ofOne(err) {
		done(calls, err)
		return
	}
	half := len(calls) / 2
	Split(calls[:half], run, ofOne, done)
	Split(calls[half:], run, ofOne, done)
}
