package server

import (
	"math"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// The JSON of job requests is read as strictly as that of the ledger: unknown
// fields, fields given twice and wrong types are refused by name. An optional
// field may be null, which means absent. What values are allowed is for package
// jobs to say.

// jobDepth bounds the nesting of a request. It is far above that of the values in it, so that what is said of a value that is
// too deep names its field.
const jobDepth = 4 * api.MaxJSONDepth

// fields reads the object in b; fields that are null are skipped unless the
// null is a value.
func fields(b []byte, field func(name string, v gjson.Result) error) error {
	if len(b) == 0 {
		return nil
	}
	return api.ParseObject(b, jobDepth, nullIsAbsent(field))
}

// nullIsAbsent gives field no value for a member that is null, unless null is a value of it.
func nullIsAbsent(field func(name string, v gjson.Result) error) func(string, gjson.Result) error {
	return func(name string, v gjson.Result) error {
		if v.Type == gjson.Null && name != "payload" && name != "result" {
			return field(name, gjson.Result{})
		}
		return field(name, v)
	}
}

// absent reports a field that was null.
func absent(v gjson.Result) bool { return v.Raw == "" }

func stringField(name string, v gjson.Result, to *string) error {
	if absent(v) {
		return nil
	}
	s, err := api.StringField(name, v)
	*to = s
	return err
}

// nameField refuses an empty text. A caller that sends one counts on its effect, and without a value there is none.
func nameField(name string, v gjson.Result, to *string) error {
	if err := stringField(name, v, to); err != nil || absent(v) || *to != "" {
		return err
	}
	return &jobs.FieldError{Field: name, Value: `""`, Allowed: "a value, or no such field"}
}

func intField(name string, v gjson.Result, to *int) error {
	if absent(v) {
		return nil
	}
	n, err := strconv.Atoi(api.WholeNumber(v.Raw))
	if err != nil || v.Type != gjson.Number {
		return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be a whole number"}
	}
	*to = n
	return nil
}

// millisField reads milliseconds. Those that no duration can hold become the
// longest, which package jobs refuses with the bounds of the field.
func millisField(name string, v gjson.Result, to *time.Duration) error {
	if absent(v) {
		return nil
	}
	n, err := strconv.ParseInt(api.WholeNumber(v.Raw), 10, 64)
	if err != nil || v.Type != gjson.Number {
		return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be a whole number of milliseconds"}
	}
	*to = millis(n)
	return nil
}

func millis(n int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Millisecond)
	return time.Duration(min(max(n, -most), most)) * time.Millisecond
}

func boolField(name string, v gjson.Result, to *bool) error {
	if absent(v) {
		return nil
	}
	if v.Type != gjson.True && v.Type != gjson.False {
		return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be true or false"}
	}
	*to = v.Bool()
	return nil
}

func walField(name string, v gjson.Result, to *jobs.WALLocations) error {
	if absent(v) {
		return nil
	}
	m := make(map[string]string)
	err := api.ParseObject([]byte(v.Raw), 1, func(db string, lsn gjson.Result) error {
		s, err := api.StringField(name+"."+httpd.Clip(db), lsn)
		m[db] = s
		return err
	})
	if err != nil {
		return within(name, err)
	}
	*to, err = jobs.ParseWALLocations(m)
	return err
}

// within says in which field an object was that could not be read.
func within(name string, err error) error {
	if fe, ok := err.(*api.FieldError); ok && fe.Field == "body" {
		return &api.FieldError{Field: name, Value: fe.Value, Allowed: fe.Allowed}
	}
	return err
}

func parseSubmission(b []byte) (s jobs.Submission, err error) {
	err = fields(b, func(name string, v gjson.Result) error { return submissionField(&s, name, v) })
	return s, err
}

func submissionField(s *jobs.Submission, name string, v gjson.Result) error {
	switch name {
	case "function":
		return stringField(name, v, &s.Function)
	case "payload":
		s.Payload = []byte(v.Raw)
	case "id":
		return nameField(name, v, &s.ID)
	case "key":
		return nameField(name, v, &s.Key)
	case "priority":
		return intField(name, v, &s.Priority)
	case "max_attempts":
		return positiveField(name, v, &s.MaxAttempts)
	case "delay_ms":
		return millisField(name, v, &s.Delay)
	case "run_at":
		return timeField(name, v, &s.RunAt)
	case "on_duplicate":
		return onDuplicateField(name, v, &s.ReturnExisting)
	case "wal_locations":
		return walField(name, v, &s.WALLocations)
	case "dedup":
		if !absent(v) {
			s.Dedup = new(jobs.Dedup)
			return within(name, parseDedup([]byte(v.Raw), s.Dedup))
		}
	default:
		return api.UnknownField(name)
	}
	return nil
}

// positiveField refuses a zero, which package jobs takes for the default.
func positiveField(name string, v gjson.Result, to *int) error {
	if err := intField(name, v, to); err != nil || absent(v) || *to != 0 {
		return err
	}
	return &api.FieldError{Field: name, Value: "0", Allowed: "must be at least 1"}
}

func timeField(name string, v gjson.Result, to *time.Time) error {
	if absent(v) {
		return nil
	}
	s, err := api.StringField(name, v)
	if err != nil {
		return err
	}
	if *to, err = api.ParseTime(s); err != nil {
		return &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be a time such as 2026-01-02T15:04:05Z"}
	}
	return nil
}

func onDuplicateField(name string, v gjson.Result, returnExisting *bool) error {
	s := "reject"
	if err := stringField(name, v, &s); err != nil {
		return err
	}
	if s != "reject" && s != "return_existing" {
		return &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be reject or return_existing"}
	}
	*returnExisting = s == "return_existing"
	return nil
}

func parseDedup(b []byte, d *jobs.Dedup) error {
	return fields(b, func(name string, v gjson.Result) error {
		full := "dedup." + name
		switch name {
		case "strategy":
			s := ""
			err := stringField(full, v, &s)
			if err == nil {
				d.Strategy, err = jobs.ParseStrategy(s)
			}
			return err
		case "key":
			return nameField(full, v, &d.Key)
		case "ttl_ms":
			if err := millisField(full, v, &d.TTL); err != nil || absent(v) || d.TTL != 0 {
				return err
			}
			return &api.FieldError{Field: full, Value: "0", Allowed: "must be at least " + strconv.FormatInt(jobs.MinDedupTTL.Milliseconds(), 10)}
		case "if_deduplicated":
			s := ""
			if err := stringField(full, v, &s); err != nil {
				return err
			}
			if s != "" && s != "reschedule_once" {
				return &api.FieldError{Field: full, Value: httpd.Clip(s), Allowed: "must be reschedule_once"}
			}
			d.RescheduleOnce = s != ""
			return nil
		}
		return api.UnknownField(full)
	})
}

func parseClaim(b []byte) (c jobs.ClaimRequest, err error) {
	err = fields(b, func(name string, v gjson.Result) error {
		switch name {
		case "worker":
			return stringField(name, v, &c.Worker)
		case "functions":
			return stringsField(name, v, &c.Functions)
		case "limit":
			return positiveField(name, v, &c.Limit)
		case "lease_ms":
			return leaseField(name, v, &c.Lease)
		case "wait_ms":
			return millisField(name, v, &c.Wait)
		}
		return api.UnknownField(name)
	})
	return c, err
}

// leaseField refuses a zero, which package jobs takes for the default.
func leaseField(name string, v gjson.Result, to *time.Duration) error {
	if err := millisField(name, v, to); err != nil || absent(v) || *to != 0 {
		return err
	}
	return &api.FieldError{Field: name, Value: "0", Allowed: "must be at least " + strconv.FormatInt(jobs.MinLease.Milliseconds(), 10)}
}

func stringsField(name string, v gjson.Result, to *[]string) error {
	if absent(v) {
		return nil
	}
	if !v.IsArray() {
		return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be an array of strings"}
	}
	var err error
	v.ForEach(func(_, e gjson.Result) bool {
		var s string
		if s, err = api.StringField(name, e); err == nil {
			*to = append(*to, s)
		}
		return err == nil && len(*to) <= jobs.MaxFunctions
	})
	return err
}

func parseHeartbeat(b []byte) (token string, lease time.Duration, err error) {
	err = fields(b, func(name string, v gjson.Result) error {
		switch name {
		case "lease_token":
			return stringField(name, v, &token)
		case "lease_ms":
			return leaseField(name, v, &lease)
		}
		return api.UnknownField(name)
	})
	return token, lease, err
}

func parseFinish(b []byte, f *jobs.Finish, many bool) error {
	return fields(b, func(name string, v gjson.Result) error {
		switch name {
		case "id":
			if many {
				return stringField(name, v, &f.ID)
			}
		case "lease_token":
			return stringField(name, v, &f.Token)
		case "status":
			return statusField(name, v, &f.State)
		case "result":
			f.Result = []byte(v.Raw)
			return nil
		case "error":
			return stringField(name, v, &f.Error)
		}
		return api.UnknownField(name)
	})
}

func statusField(name string, v gjson.Result, to *jobs.State) error {
	s := ""
	if err := stringField(name, v, &s); err != nil {
		return err
	}
	st, err := jobs.ParseState(name, s)
	if err != nil || !st.Finishes() {
		return &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: "must be complete, failed or cancelled"}
	}
	*to = st
	return nil
}

// parseFinishes reads the calls of a finish of many jobs. One that cannot be
// read makes the whole request fail: it says nothing about its own job.
func parseFinishes(b []byte) (fs []jobs.Finish, err error) {
	err = fields(b, func(name string, v gjson.Result) error {
		if name != "finishes" {
			return api.UnknownField(name)
		}
		if !v.IsArray() {
			return &api.FieldError{Field: name, Value: httpd.Clip(v.Raw), Allowed: "must be an array of objects"}
		}
		var err error
		v.ForEach(func(_, e gjson.Result) bool {
			var f jobs.Finish
			err = within(name, parseFinish([]byte(e.Raw), &f, true))
			fs = append(fs, f)
			return err == nil && len(fs) <= jobs.MaxLimit
		})
		return err
	})
	return fs, err
}

func parseRetry(b []byte) (r jobs.Retry, err error) {
	err = fields(b, func(name string, v gjson.Result) error {
		switch name {
		case "lease_token":
			return nameField(name, v, &r.Token)
		case "delay_ms":
			if absent(v) {
				return nil
			}
			r.Delay = new(time.Duration)
			return millisField(name, v, r.Delay)
		case "error":
			return stringField(name, v, &r.Error)
		case "uncounted":
			return boolField(name, v, &r.Uncounted)
		}
		return api.UnknownField(name)
	})
	return r, err
}

// parseNothing is for calls without fields, whose body may be empty or {}.
func parseNothing(b []byte) error {
	return fields(b, func(name string, _ gjson.Result) error { return api.UnknownField(name) })
}
