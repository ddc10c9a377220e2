package languages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/client/workertest"
)

// goHandler returns the handler of a name, nil if there is none.
func goHandler(name string, goOn <-chan struct{}) client.Handler {
	ended := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	switch name {
	case "echo":
		return func(_ context.Context, j *client.Job) (any, error) { return j.Payload, nil }
	case "nothing":
		return func(context.Context, *client.Job) (any, error) { return nil, nil }
	case "large":
		return func(_ context.Context, j *client.Job) (any, error) { return strings.Repeat("x", int(number(j))), nil }
	case "umlauts":
		return func(_ context.Context, j *client.Job) (any, error) { return strings.Repeat("ü", int(number(j))), nil }
	case "no_json":
		return func(context.Context, *client.Job) (any, error) { return func() {}, nil }
	case "deep":
		return func(context.Context, *client.Job) (any, error) {
			return json.RawMessage(strings.Repeat("[", 99) + strings.Repeat("]", 99)), nil
		}
	case "fail":
		return func(_ context.Context, j *client.Job) (any, error) { return nil, fmt.Errorf("no %d", j.Attempt) }
	case "fail_once":
		return func(_ context.Context, j *client.Job) (any, error) {
			if j.Attempt == 1 {
				return nil, errors.New("not yet")
			}
			return "now", nil
		}
	case "permanent":
		return func(context.Context, *client.Job) (any, error) {
			return nil, fmt.Errorf("wrapped: %w", client.Permanent(errors.New("never")))
		}
	case "retry_after":
		return func(_ context.Context, j *client.Job) (any, error) {
			if j.Attempt == 1 {
				return nil, client.RetryAfter(errors.New("soon"), millis(number(j)))
			}
			return "later", nil
		}
	case "crash":
		return func(context.Context, *client.Job) (any, error) { panic("oh no") }
	case "no_text":
		return func(context.Context, *client.Job) (any, error) { return nil, errors.New("") }
	case "endless":
		return func(context.Context, *client.Job) (any, error) {
			return nil, client.Permanent(errors.New(strings.Repeat("ü", 100_000)))
		}
	case "wait":
		return func(ctx context.Context, _ *client.Job) (any, error) {
			select {
			case <-goOn:
				return "done", nil
			case <-ctx.Done():
				return nil, errors.New(causeOf(ctx))
			}
		}
	case "stubborn":
		return func(context.Context, *client.Job) (any, error) {
			<-goOn
			return "done", nil
		}
	case "finish_anyway":
		return func(ctx context.Context, _ *client.Job) (any, error) {
			_ = ended(ctx)
			return causeOf(ctx), nil
		}
	case "sleep":
		return func(ctx context.Context, j *client.Job) (any, error) {
			select {
			case <-time.After(millis(number(j))):
				return "done", nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	return nil
}

// checkHandler tests one of the handlers that are to be idempotent.
func checkHandler(name string, payload json.RawMessage) (err error) {
	done, seen := 0, map[string]bool{}
	h := map[string]client.Handler{
		"once": func(_ context.Context, j *client.Job) (any, error) {
			if !seen[j.ID] {
				seen[j.ID] = true
				done++
			}
			return done, nil
		},
		"twice": func(context.Context, *client.Job) (any, error) {
			done++
			return nil, nil
		},
		"fail": goHandler("fail", nil),
	}[name]
	if h == nil {
		return fmt.Errorf("no handler %q", name)
	}
	defer func() {
		if e, ok := recover().(failed); ok {
			err = errors.New(string(e))
		}
	}()
	workertest.Idempotent(judge{}, h, payload, func(testing.TB) int { return done })
	return nil
}

// failed is what a judge panics with.
type failed string

// judge is a testing.TB of which workertest uses little.
type judge struct{ testing.TB }

func (judge) Helper()                           {}
func (judge) Context() context.Context          { return context.Background() }
func (judge) Fatalf(format string, args ...any) { panic(failed(fmt.Sprintf(format, args...))) }
