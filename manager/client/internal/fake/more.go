package fake

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/client"
)

func (m *manager) pause(r *http.Request, _ []byte) (int, any) {
	f := r.PathValue("function")
	m.paused[f] = true
	return 200, map[string]any{"name": f, "paused": true}
}

func (m *manager) resume(r *http.Request, _ []byte) (int, any) {
	f := r.PathValue("function")
	delete(m.paused, f)
	m.change()
	return 200, map[string]any{"name": f, "paused": false}
}

func (m *manager) functions(*http.Request, []byte) (int, any) {
	out := []any{}
	seen := map[string]bool{}
	for _, j := range m.jobs {
		if f := j.Function; !seen[f] {
			seen[f] = true
			out = append(out, map[string]any{"name": f, "paused": m.paused[f], "queued": len(m.selected(f, client.StateQueued))})
		}
	}
	return 200, map[string]any{"functions": out, "cursor": ""}
}

func (m *manager) deadLetters(r *http.Request, _ []byte) (int, any) {
	out := []any{}
	for _, j := range m.selected(r.PathValue("function"), client.StateFailed) {
		out = append(out, map[string]any{"id": j.ID, "job": j, "reason": j.Error})
	}
	return 200, map[string]any{"dead_letters": out, "cursor": ""}
}

func (m *manager) replay(r *http.Request, _ []byte) (int, any) {
	j := m.find(r.PathValue("id"))
	if j == nil {
		return 404, api.Problem{Code: api.CodeNotFound, Title: "Not found", Detail: "no such dead letter"}
	}
	copied := m.add(&submission{Function: j.Function, Payload: j.Payload, MaxAttempts: j.MaxAttempts})
	j.State, j.ReplayedAs = client.StateReplayed, copied.ID
	return 202, copied
}

func (m *manager) createLog(r *http.Request, _ []byte) (int, any) {
	name := r.PathValue("log")
	m.logs[name] = m.logs[name][:len(m.logs[name]):len(m.logs[name])]
	return 201, client.LogInfo{Log: name, First: 1, Last: uint64(len(m.logs[name]))}
}

func (m *manager) appendLog(r *http.Request, b []byte) (int, any) {
	var in struct{ Entries []client.LogEntry }
	_ = json.Unmarshal(b, &in)
	name := r.PathValue("log")
	var results []any
	for _, e := range in.Entries {
		status, number := 201, uint64(len(m.logs[name])+1)
		for _, was := range m.logs[name] {
			if was.ID == e.ID {
				status, number = 200, was.Entry
			}
		}
		if e.Segment, e.Entry = 1, number; status == 201 {
			m.logs[name] = append(m.logs[name], e)
		}
		results = append(results, map[string]any{"status": status, "log": name, "segment": 1, "entry": number, "id": e.ID, "duplicate": status == 200})
	}
	return 200, map[string]any{"results": results}
}

func (m *manager) readLog(r *http.Request, _ []byte) (int, any) {
	entries := m.logs[r.PathValue("log")]
	after, _ := strconv.Atoi(r.FormValue("after"))
	return 200, client.LogEntries{Entries: append([]client.LogEntry{}, entries[after:]...), Cursor: strconv.Itoa(len(entries))}
}
