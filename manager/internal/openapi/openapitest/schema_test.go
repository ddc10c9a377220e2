package openapitest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
)

// shapes are the types of the bodies of calls, by operation: the request, then the answers. What a call takes from
// elsewhere than its body is not in its description.
var shapes = map[string]struct {
	request any
	without string
	answers []any
}{
	"POST /v1/jobs":                {schema.Submission{}, "idempotency_key", []any{schema.Job{}, schema.JobOfAnother{}}},
	"GET /v1/jobs":                 {nil, "", []any{schema.JobPage{}}},
	"POST /v1/jobs/batch":          {schema.Submissions{}, "", nil},
	"POST /v1/jobs/bulk":           {schema.BulkRequest{}, "", []any{schema.BulkResult{}}},
	"POST /v1/jobs/claim":          {schema.ClaimRequest{}, "", []any{schema.Claimed{}}},
	"POST /v1/jobs/finish":         {schema.Finishes{}, "", []any{schema.Finished{}}},
	"GET /v1/jobs/stats":           {nil, "", []any{schema.JobStats{}}},
	"GET /v1/jobs/{id}":            {nil, "", []any{schema.Job{}}},
	"DELETE /v1/jobs/{id}":         {nil, "", []any{schema.Job{}}},
	"POST /v1/jobs/{id}/heartbeat": {schema.HeartbeatRequest{}, "", []any{schema.Beat{}}},
	"POST /v1/jobs/{id}/finish":    {schema.FinishRequest{}, "id", []any{schema.Job{}}},
	"POST /v1/jobs/{id}/retry":     {schema.RetryRequest{}, "", []any{schema.Job{}}},
	"POST /v1/jobs/{id}/cancel":    {struct{}{}, "", []any{schema.Job{}}},

	"GET /v1/functions":                                  {nil, "", []any{schema.FunctionPage{}}},
	"PUT /v1/functions/{name}":                           {schema.Limits{}, "", []any{schema.FunctionLimits{}}},
	"POST /v1/functions/{name}/pause":                    {struct{}{}, "", []any{schema.Paused{}}},
	"POST /v1/functions/{name}/resume":                   {struct{}{}, "", []any{schema.Paused{}}},
	"GET /v1/functions/{name}/dead-letters":              {nil, "", []any{schema.DeadPage{}}},
	"POST /v1/functions/{name}/dead-letters/{id}/replay": {struct{}{}, "", []any{schema.Job{}}},
	"POST /v1/batches":                                   {schema.BatchRequest{}, "", []any{schema.Batch{}}},
	"GET /v1/batches":                                    {nil, "", []any{schema.BatchPage{}}},
	"GET /v1/batches/{id}":                               {nil, "", []any{schema.Batch{}}},
	"GET /v1/events":                                     {nil, "", []any{schema.EventPage{}}},
	"POST /v1/events/{name}":                             {schema.EventRequest{}, "", []any{schema.Sent{}}},
	"PUT /v1/events/{name}/subscriptions/{function}":     {struct{}{}, "", []any{schema.Subscription{}}},
	"DELETE /v1/events/{name}/subscriptions/{function}":  {nil, "", []any{schema.Subscription{}}},
	"GET /v1/logs":                                       {nil, "", []any{schema.LogPage{}}},
	"PUT /v1/logs/{log}":                                 {schema.LogChange{}, "", []any{schema.LogInfo{}}},
	"GET /v1/logs/{log}":                                 {nil, "", []any{schema.LogInfo{}}},
	"GET /v1/logs/{log}/entries":                         {nil, "", []any{schema.LogEntries{}}},
	"GET /v1/logs/{log}/entries/by-id/{id}":              {nil, "", []any{schema.LogEntry{}}},
	"POST /v1/logs/{log}/writers":                        {schema.LogWriterRequest{}, "", []any{schema.LogWriter{}}},
	"GET /v1/logs/{log}/writers":                         {nil, "", []any{schema.LogWriterPage{}}},

	"POST /v1/ledger/reserve":                 {api.ReserveRequest{}, "", []any{schema.LedgerReply{}}},
	"POST /v1/ledger/renew":                   {api.ReserveRequest{}, "wait_ms", []any{schema.LedgerReply{}}},
	"POST /v1/ledger/commit":                  {api.FinishRequest{}, "", nil},
	"POST /v1/ledger/reject":                  {api.FinishRequest{}, "", nil},
	"POST /v1/ledger/release":                 {api.ReleaseRequest{}, "", nil},
	"GET /v1/ledger/entries":                  {nil, "", []any{schema.EntryPage{}}},
	"GET /v1/ledger/entries/{key}":            {nil, "", []any{schema.Entry{}}},
	"DELETE /v1/ledger/entries/{key}":         {nil, "", []any{schema.Entry{}}},
	"POST /v1/ledger/entries/{key}/resolve":   {schema.Resolution{}, "", []any{schema.Entry{}}},
	"GET /v1/ledger/entries/{key}/history":    {nil, "", []any{schema.EntryHistory{}}},
	"GET /v1/ledger/incidents":                {nil, "", []any{schema.Incidents{}}},
	"GET /v1/ledger/activity":                 {nil, "", []any{schema.Activity{}}},
	"GET /v1/ledger/stats":                    {nil, "", []any{schema.LedgerStats{}}},
	"GET /v1/ledger/shard":                    {nil, "", []any{schema.Shard{}}},
	"GET /v1/ledger/quarantine":               {nil, "", []any{schema.Quarantine{}}},
	"DELETE /v1/ledger/quarantine":            {nil, "", []any{schema.Quarantine{}}},
	"GET /v1/ledger/conflicts":                {nil, "", []any{schema.ConflictPage{}}},
	"GET /v1/peers":                           {nil, "", []any{schema.Peers{}}},
	"GET /v1/unreadable":                      {nil, "", []any{schema.UnreadablePage{}}},
	"DELETE /v1/unreadable/{collection}/{id}": {nil, "", []any{schema.UnreadableRecord{}}},
}

// components are types that have a name in the description.
var components = map[string]any{
	"SubmissionItem": schema.Submission{}, "LogEntry": schema.LogItem{}, "Appended": schema.LogAppended{},
}

// The description says of each body what the types of package schema do: the members, their kinds, the texts of an enum, and
// which members of an answer are always there.
func TestDescriptionHasTheTypesOfTheSchema(t *testing.T) {
	d, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range shapes {
		i := slices.IndexFunc(d.operations, func(o operation) bool { return o.method+" "+o.path == name })
		if i < 0 {
			t.Errorf("%s is not described", name)
			continue
		}
		op := d.operations[i].op
		if s.request != nil {
			c := comparison{d: d, without: s.without}
			c.compare(t, name, content(d, op["requestBody"]), reflect.TypeOf(s.request))
		}
		var described []any
		for status, response := range op["responses"].(map[string]any) {
			if strings.HasPrefix(status, "2") {
				one := content(d, response)
				if any, has := one["anyOf"].([]any); has {
					described = append(described, any...)
				} else {
					described = append(described, one)
				}
			}
		}
		for _, answer := range s.answers {
			c := comparison{d: d, answer: true}
			found := slices.ContainsFunc(described, func(one any) bool { return c.differs("", one, reflect.TypeOf(answer)) == "" })
			if !found && len(described) > 0 {
				t.Errorf("%s: no answer is %T: %s", name, answer, c.differs("", described[0], reflect.TypeOf(answer)))
			}
		}
	}
	for name, v := range components {
		c := comparison{d: d, without: "status"}
		c.compare(t, name, map[string]any{"$ref": "#/components/schemas/" + name}, reflect.TypeOf(v))
	}
}

func content(d *Description, of any) map[string]any {
	body, _, _ := d.resolve(map[string]any{"x": of}, "", "x")
	in, _ := body["content"].(map[string]any)
	media, _ := in["application/json"].(map[string]any)
	s, _ := media["schema"].(map[string]any)
	return s
}

type comparison struct {
	d       *Description
	answer  bool
	without string // a member of the outermost object that is not described
}

func (c *comparison) compare(t *testing.T, name string, described any, of reflect.Type) {
	t.Helper()
	if difference := c.differs("", described, of); difference != "" {
		t.Errorf("%s is not %s: %s", name, of, difference)
	}
}

// differs returns the first difference between a described value and a type.
func (c *comparison) differs(path string, described any, of reflect.Type) string {
	s, _ := described.(map[string]any)
	if _, is := s["$ref"]; is {
		s, _, _ = c.d.resolve(map[string]any{"x": s}, "", "x")
	}
	if any, is := s["anyOf"].([]any); is { // null, or a value that says nothing of its type
		for _, one := range any {
			if c.differs(path, one, of) == "" {
				return ""
			}
		}
	}
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	want := ""
	switch of {
	case reflect.TypeFor[time.Duration]():
		if strings.Contains(path, "seconds") {
			return kind(path, s, "number")
		}
		return kind(path, s, "integer")
	case reflect.TypeFor[time.Time](), reflect.TypeFor[[]byte]():
		return kind(path, s, "string")
	case reflect.TypeFor[api.Header]():
		of = reflect.TypeFor[[2]string]()
	case reflect.TypeFor[json.RawMessage]():
		return ""
	case reflect.TypeFor[api.Problem]():
		return cmp.Or(kind(path, s, "object"), map[bool]string{false: path + ": no problem"}[fmt.Sprint(s["required"]) != ""])
	}
	switch of.Kind() {
	case reflect.Interface:
	case reflect.String, reflect.Uint8:
		want = "string"
	case reflect.Bool:
		want = "boolean"
	case reflect.Int, reflect.Int64, reflect.Uint64:
		want = "integer"
	case reflect.Float64:
		want = "number"
	case reflect.Array:
		return cmp.Or(kind(path, s, "array"), map[bool]string{false: path + ": another length"}[s["maxItems"] == json.Number(fmt.Sprint(of.Len()))])
	case reflect.Slice:
		return cmp.Or(kind(path, s, "array"), c.differs(path+"[]", s["items"], of.Elem()))
	case reflect.Map:
		return cmp.Or(kind(path, s, "object"), c.differs(path+".*", s["additionalProperties"], of.Elem()))
	case reflect.Struct:
		return cmp.Or(kind(path, s, "object"), c.members(path, s, of))
	default:
		return path + ": no JSON for " + of.String()
	}
	return kind(path, s, want)
}

func (c *comparison) members(path string, s map[string]any, of reflect.Type) string {
	properties, _ := s["properties"].(map[string]any)
	if s["additionalProperties"] != false {
		return path + ": no description, or one that allows further members"
	}
	var names, always []string
	for _, f := range reflect.VisibleFields(of) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Tag.Get("whole") != "" {
			for _, inner := range reflect.VisibleFields(f.Type) {
				name, _, _ := strings.Cut(inner.Tag.Get("json"), ",")
				if difference := c.differs(path+"."+name, properties[name], inner.Type); difference != "" {
					return difference
				}
				names, always = append(names, name), append(always, name)
			}
			continue
		}
		if f.Anonymous || name == "-" || path == "" && name == c.without {
			continue
		}
		names = append(names, name)
		if options == "" || options == "omitzero" { // the answers of tests show which times a job always has
			always = append(always, name)
		}
		if difference := c.differs(path+"."+name, properties[name], f.Type); difference != "" {
			return difference
		}
		property, _ := properties[name].(map[string]any)
		if listed, is := property["enum"].([]any); is && !c.answer && f.Tag.Get("enum") != "" {
			listed = slices.DeleteFunc(slices.Clone(listed), func(v any) bool { return v == nil })
			if got := strings.Trim(strings.ReplaceAll(fmt.Sprint(listed), " ", ","), "[]"); got != f.Tag.Get("enum") {
				return fmt.Sprintf("%s.%s: enum %s, want %s", path, name, got, f.Tag.Get("enum"))
			}
		}
	}
	slices.Sort(names)
	if described := slices.Sorted(maps.Keys(properties)); !slices.Equal(described, names) {
		return fmt.Sprintf("%s: members %q, want %q", path, described, names)
	}
	required, _ := s["required"].([]any)
	for _, name := range required {
		if !slices.Contains(names, name.(string)) || c.answer && !slices.Contains(always, name.(string)) {
			return fmt.Sprintf("%s: %s is required, and may be left out", path, name)
		}
	}
	return ""
}

// kind returns a difference unless a described value is of this kind, "" for any.
func kind(path string, s map[string]any, want string) string {
	switch is := s["type"].(type) {
	case string:
		if is == want {
			return ""
		}
	case []any:
		if len(is) == 2 && is[0] == want && is[1] == "null" {
			return ""
		}
	case nil:
		constant, has := s["const"]
		kinds := map[string]reflect.Kind{"string": reflect.String, "boolean": reflect.Bool}
		if s != nil && (!has || reflect.ValueOf(constant).Kind() == kinds[want]) && (want == "" || has) {
			return ""
		}
	}
	return fmt.Sprintf("%s: %v is not of the type %q", path, s, want)
}
