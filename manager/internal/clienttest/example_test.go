package clienttest

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/oncegate/oncegate/manager/client"
	"github.com/oncegate/oncegate/manager/managertest"
)

// withManager runs an example against a manager of its own. A program names the address of its manager instead, such as
// http://127.0.0.1:8090.
func withManager(example func(url string)) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	t := &exampleTB{ctx: ctx}
	defer func() {
		for i := len(t.cleanups) - 1; i >= 0; i-- {
			t.cleanups[i]()
		}
	}()
	example(managertest.Start(t, managertest.Options{}).URL)
}

// exampleTB is what managertest needs of a test.
type exampleTB struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

func (t *exampleTB) Context() context.Context { return t.ctx }

func (t *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		log.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (t *exampleTB) Helper()           {}
func (t *exampleTB) Cleanup(fn func()) { t.cleanups = append(t.cleanups, fn) }
func (t *exampleTB) Fatal(args ...any) { log.Fatal(args...) }

// A handler continues the trace of the submission. Any library that reads W3C trace contexts will do.
func ExampleJob_Traceparent() {
	withManager(func(url string) {
		ctx := context.Background()
		c, err := client.New(client.Options{URL: url})
		if err != nil {
			log.Fatal(err)
		}
		_, err = c.SubmitIdempotent(ctx, client.Submission{
			Function: "mail.send", Traceparent: "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01",
		})
		if err != nil {
			log.Fatal(err)
		}
		jobs, err := c.Claim(ctx, client.ClaimRequest{Worker: "w"})
		if err != nil {
			log.Fatal(err)
		}
		carrier := propagation.MapCarrier{"traceparent": jobs[0].Traceparent}
		ctx = propagation.TraceContext{}.Extract(ctx, carrier)
		// A span that starts with ctx is now a child of the submission's.
		fmt.Println(trace.SpanContextFromContext(ctx).TraceID())
	})
	// Output: 0123456789abcdef0123456789abcdef
}

// TestExamplesHoldForAManager runs the examples of the client's documentation. The client's own tests skip them, because a
// manager is not in the client's module.
func TestExamplesHoldForAManager(t *testing.T) {
	m := managertest.Start(t, managertest.Options{})
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-run=^Example", "github.com/oncegate/oncegate/manager/client/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "ONCEGATE_EXAMPLES_URL="+m.URL)
	out, err := cmd.CombinedOutput()
	if n := strings.Count(string(out), "--- PASS: Example"); err != nil || n < 14 {
		t.Errorf("%d examples, %v\n%s", n, err, out)
	}
}
