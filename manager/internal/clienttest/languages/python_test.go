package languages

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runPython runs python3 in the Python client's folder.
func runPython(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", args...)
	cmd.Dir = filepath.Join("..", "..", "..", "client", "python")
	cmd.Env = append(os.Environ(), "PYTHONPYCACHEPREFIX="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("python3 %q: %v\n%s", args, err, out)
	}
	return out
}

// TestPythonPackage compiles the Python package, and runs its own tests.
func TestPythonPackage(t *testing.T) {
	t.Parallel()
	runPython(t, "-m", "compileall", "-q", ".")
	runPython(t, "-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "tests")
}

// pythonShapes are classes of the Python client: where the API's description has their members, and what differs.
var pythonShapes = map[string]shape{
	"Job":           {at: schemas + "Job", more: []string{"replayed", "raw"}, without: []string{"payload_bytes", "dedup"}},
	"AttemptError":  {at: schemas + "Job/properties/errors/items"},
	"Lease":         {at: schemas + "Job/properties/lease"},
	"Dedup":         {at: schemas + "Submission/properties/dedup"},
	"Submission":    {at: schemas + "SubmissionItem", more: []string{"traceparent"}},
	"Event":         {at: "paths/~1v1~1events~1{name}/post/requestBody" + jsonBody, more: []string{"name", "idempotency_key", "traceparent"}, without: []string{"key"}},
	"Sent":          {at: schemas + "Sent", more: []string{"replayed"}},
	"Batch":         {at: "paths/~1v1~1batches/post/requestBody" + jsonBody, more: []string{"idempotency_key", "traceparent"}},
	"BatchInfo":     {at: schemas + "Batch", more: []string{"replayed"}},
	"ScheduleSpec":  {at: schemas + "ScheduleSpec"},
	"Schedule":      {at: schemas + "Schedule"},
	"SchedulePage":  {at: "paths/~1v1~1schedules/get/responses/200" + jsonBody},
	"Limits":        {at: schemas + "Limits"},
	"Rate":          {at: schemas + "Limits/properties/rate"},
	"FunctionInfo":  {at: functions + "/properties/functions/items"},
	"FunctionRates": {at: functions + "/properties/functions/items/properties/last_minute"},
	"FunctionPage":  {at: functions},
	"ListQuery":     {at: "paths/~1v1~1jobs/get/parameters"},
	"Page":          {at: "paths/~1v1~1jobs/get/responses/200" + jsonBody},
	"Beat":          {at: "paths/~1v1~1jobs~1{id}~1heartbeat/post/responses/200" + jsonBody},
	"Answer":        {at: schemas + "Result"},
	"Reservation":   {at: schemas + "ReserveReply", more: []string{"answer"}, without: []string{"result"}},
}

// TestPythonTypes: the client's classes have the members of the API's description, and no others. Durations are seconds there, so
// their names have no unit.
func TestPythonTypes(t *testing.T) {
	t.Parallel()
	out := runPython(t, "-c", `
import dataclasses, json, oncegate
of = lambda c: [f.name for f in dataclasses.fields(c)]
print(json.dumps({n: of(getattr(oncegate, n)) for n in oncegate.__all__ if dataclasses.is_dataclass(getattr(oncegate, n))}))`)
	var found map[string][]string
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatal(err)
	}
	doc := document(t)
	for name, s := range pythonShapes {
		want := slices.Clone(s.more)
		for m := range maps.Keys(membersAt(t, doc, s.at)) {
			if !slices.Contains(s.without, m) {
				want = append(want, strings.TrimSuffix(m, "_ms"))
			}
		}
		slices.Sort(want)
		slices.Sort(found[name])
		if !slices.Equal(found[name], want) {
			t.Errorf("%s has the members\n%v, and the API\n%v", name, found[name], want)
		}
	}
}
