package server

import (
	"fmt"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
)

// whole reads a parameter that is a whole number. One that is empty counts as not given, so that a call may be made as the
// reference writes it, with "?limit=&cursor=". The error is a *api.FieldError.
func whole(q map[string]string, name string, least, most, otherwise int64) (int64, error) {
	s := q[name]
	if s == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < least || n > most {
		return 0, &api.FieldError{Field: name, Value: httpd.Clip(s), Allowed: fmt.Sprintf("must be a whole number from %d to %d", least, most)}
	}
	return n, nil
}

// waitOf reads the query of a call that may wait for a job or a batch.
func waitOf(r *httpd.Request) (time.Duration, error) {
	q, err := r.QueryValues("wait_ms")
	if err != nil {
		return 0, err
	}
	wait, err := whole(q, "wait_ms", 0, jobs.MaxWait.Milliseconds(), 0)
	return schema.Duration(wait), err
}

// limitOf reads how many items a page has at most; otherwise where the caller does not say.
func limitOf(q map[string]string, most, otherwise int) (int, error) {
	n, err := whole(q, "limit", 1, int64(most), int64(otherwise))
	return int(n), err
}

// idempotencyKey reads the header, bare or as an RFC 8941 string; "" when there
// is none. One that is there but empty, repeated or not a key is refused, never
// taken for absent: a client that sends it counts on being protected.
func idempotencyKey(r *httpd.Request) (string, error) {
	n := r.HeaderCount(api.HeaderIdempotencyKey)
	if n == 0 {
		return "", nil
	}
	v := r.Header(api.HeaderIdempotencyKey)
	key, wrong := api.HeaderKey(v)
	if n > 1 {
		wrong = "sent " + strconv.Itoa(n) + " times; allowed: once"
	}
	if wrong != "" {
		return "", &api.FieldError{Field: "key", Value: httpd.Clip(v), Allowed: "header " + api.HeaderIdempotencyKey + ": " + wrong}
	}
	return key, nil
}
