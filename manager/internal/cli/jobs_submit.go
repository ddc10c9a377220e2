package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// submissionFlags are those of "oncegate jobs submit".
type submissionFlags struct {
	client.Submission
	payloadFile string
	dedup       client.Dedup
	reschedule  bool
	existing    bool
}

func (c *operatorCall) submitFlags(fs *flag.FlagSet) {
	f := &c.submission
	fs.StringVar(&f.payloadFile, "payload-file", "", "`file` with the payload, - for standard input")
	fs.StringVar(&f.IdempotencyKey, "idempotency-key", "", "`key` of the call: the same submission with it is one job, however often it is made (default: a new one)")
	fs.StringVar(&f.ID, "id", "", "`id` of the job")
	fs.StringVar(&f.Key, "key", "", "`key` that one live job holds at a time")
	fs.StringVar(&f.ConcurrencyKey, "concurrency-key", "", "`key` of a tenant, for example: the keys of a function take turns")
	fs.Func("priority", "-32768 to 32767, higher runs first", settings.Number(jobs.MinPriority, jobs.MaxPriority, &f.Priority))
	fs.Func("max-attempts", "1 to 1000", settings.Number(1, jobs.MaxAttempts, &f.MaxAttempts))
	fs.Func("run-at", "`time` of the first attempt, such as 2026-01-02T15:04:05Z", func(v string) (err error) {
		if f.RunAt, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return errors.New("must be a time such as 2026-01-02T15:04:05Z")
		}
		return nil
	})
	fs.Func("delay-seconds", "run it this much later, 0 to 31622400", settings.Seconds(0, settings.MaxSeconds, &c.delay))
	fs.Func("expires-in-seconds", "begin no attempt later than this, 1 to 31622400", settings.Seconds(1, settings.MaxSeconds, &f.ExpiresIn))
	fs.Func("on-expiry", "drop or dead_letter: whether a job that expired becomes a dead letter", settings.Choice([]string{"drop", "dead_letter"}, &f.OnExpiry))
	fs.Func("attempt-timeout-seconds", "the longest time of an attempt, 1 to 86400", settings.Seconds(1, 86400, &f.Timeout))
	fs.Func("dedup", "drop duplicates: until_executing or until_executed", settings.Choice([]string{"until_executing", "until_executed"}, &f.dedup.Strategy))
	fs.StringVar(&f.dedup.Key, "dedup-key", "", "`key` that duplicates have in common, instead of the job's key or payload")
	fs.Func("dedup-ttl-seconds", "how long duplicates are dropped at most, 1 to 31622400", settings.Seconds(1, settings.MaxSeconds, &f.dedup.TTL))
	fs.BoolVar(&f.reschedule, "reschedule-once", false, "run the job once more if duplicates came; with --dedup until_executed")
	fs.BoolVar(&f.existing, "return-existing", false, "print the job that holds --key instead of failing")
}

// jobsSubmit submits a job and prints it.
func jobsSubmit(ctx context.Context, c *operatorCall) error {
	f := &c.submission
	s := f.Submission
	s.Function, s.Delay = c.args[0], c.delay
	if f.reschedule || f.dedup != (client.Dedup{}) {
		s.Dedup = &f.dedup
		if f.reschedule {
			s.Dedup.IfDeduplicated = "reschedule_once"
		}
	}
	if f.existing {
		s.OnDuplicate = "return_existing"
	}
	payload, err := c.payload("submit")
	if err != nil {
		return err
	}
	if payload != nil {
		s.Payload = payload
	}
	j, err := c.client.SubmitIdempotent(ctx, s)
	if err != nil {
		return err
	}
	return c.printJob(j)
}

// payload is the argument of the command, or what --payload-file names; nil without either.
func (c *operatorCall) payload(command string) (json.RawMessage, error) {
	name := c.submission.payloadFile
	switch {
	case len(c.args) > 1 && name != "":
		return nil, settings.Usagef("%s: PAYLOAD does not go with --payload-file", command)
	case len(c.args) > 1:
		return checkPayload(command+": PAYLOAD", []byte(c.args[1]))
	case name == "":
		return nil, nil
	}
	what := command + ": --payload-file"
	b, err := readInput(c.in, what, name, jobs.MaxPayloadBytes)
	if err != nil {
		return nil, err
	}
	return checkPayload(what+" "+name, b)
}

func checkPayload(what string, b []byte) (json.RawMessage, error) {
	if len(b) > jobs.MaxPayloadBytes || !json.Valid(b) {
		return nil, settings.Usagef("%s: must be JSON of at most %d bytes", what, jobs.MaxPayloadBytes)
	}
	return b, nil
}
