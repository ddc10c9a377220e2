package server

import (
	"cmp"
	"strconv"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/logs"
	"github.com/oncegate/oncegate/manager/internal/logs/storelogs"
)

// LogRoutes are the calls of writers, readers and operators on logs.
func LogRoutes(engine *storelogs.Engine) []httpd.Route {
	h := &logHandlers{engine}
	return []httpd.Route{
		{Method: "GET", Path: "/v1/logs", Roles: readers, Handle: h.list},
		{Method: "PUT", Path: "/v1/logs/{log}", Roles: submitters | httpd.Operator, JSON: true, Handle: h.put},
		{Method: "GET", Path: "/v1/logs/{log}", Roles: submitters | httpd.Worker | httpd.Operator, Handle: h.get},
		{Method: "DELETE", Path: "/v1/logs/{log}", Roles: httpd.Admin, Handle: h.delete},
		{Method: "POST", Path: "/v1/logs/{log}/entries", Roles: submitters, JSON: true, Handle: h.append},
		{Method: "GET", Path: "/v1/logs/{log}/entries", Roles: httpd.Worker | readers, Handle: h.read},
		{Method: "GET", Path: "/v1/logs/{log}/entries/by-id/{id}", Roles: httpd.Worker | readers, Handle: h.byID},
		{Method: "POST", Path: "/v1/logs/{log}/writers", Roles: submitters, JSON: true, Handle: h.writer},
		{Method: "GET", Path: "/v1/logs/{log}/writers", Roles: readers, Handle: h.writers},
		{Method: "DELETE", Path: "/v1/logs/{log}/writers/{writer}", Roles: httpd.Admin, Handle: h.removeWriter},
	}
}

// NoLogRoutes are those of a manager that keeps no logs. All calls are refused; why completes "this manager keeps no logs: ...".
func NoLogRoutes(why string) []httpd.Route {
	all := LogRoutes(nil)
	for i := range all {
		all[i].Handle = func(*httpd.Request, *httpd.Response) error { return logs.Unsupported(why) }
	}
	return all
}

type logHandlers struct {
	engine *storelogs.Engine
}

func (h *logHandlers) append(r *httpd.Request, w *httpd.Response) error {
	a, err := parseAppend(r.Body)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	if err := a.take(key); err != nil {
		return err
	}
	log := r.Param(0)
	out, err := h.engine.Append(r.Context(), log, a.items, a.atomic)
	if err != nil {
		return err
	}
	if !a.batch {
		if out[0].Err != nil {
			return out[0].Err
		}
		return created(w, !out[0].Duplicate, appended(log, &out[0]))
	}
	w.JSON(200)
	w.Body = append(w.Body, `{"results":[`...)
	for i := range out {
		if i > 0 {
			w.Body = append(w.Body, ',')
		}
		if out[i].Err != nil {
			p := r.Problem(out[i].Err, nil)
			w.Body = p.AppendJSON(w.Body)
			continue
		}
		one := appended(log, &out[i])
		one.Status = appendStatus(&out[i])
		w.Body = schema.Append(w.Body, &one)
	}
	w.Body = append(w.Body, `]}`...)
	return nil
}

// take gives the ids that an idempotency key makes to the entries that have none, so that a
// gate in front and the log know the request by the same key. A single entry's own id must be that key.
func (a *appendCall) take(key string) error {
	if id := a.items[0].ID; !a.batch && key != "" && id != "" && id != key {
		return &api.FieldError{Field: "id", Value: httpd.Clip(id), Allowed: "must be that of the header " + api.HeaderIdempotencyKey + ", or absent"}
	}
	for i := range a.items {
		it := &a.items[i]
		if key == "" || it.ID != "" || it.Derive != logs.NoDerive {
			continue
		}
		it.ID = key
		if a.batch {
			it.ID += "#" + strconv.Itoa(i)
		}
	}
	return nil
}

func appendStatus(o *logs.Outcome) int {
	if o.Duplicate {
		return 200
	}
	return 201
}

// appended is the answer to an append.
func appended(log string, out *logs.Outcome) schema.LogAppended {
	return schema.LogAppended{Log: log, Segment: logs.SegmentOf(out.Number), Entry: out.Number, ID: out.ID, Duplicate: out.Duplicate}
}

func (h *logHandlers) read(r *httpd.Request, w *httpd.Response) error {
	q, err := parseRead(r)
	if err != nil {
		return err
	}
	wait := q.Wait
	q.Wait = 0
	page, err := h.engine.Read(r.Context(), r.Param(0), q)
	if err == nil && len(page.Entries) == 0 && wait > 0 {
		ctx, stop := r.Hold()
		q.Wait = wait
		page, err = h.engine.Read(ctx, r.Param(0), q)
		stop()
	}
	if err != nil {
		return err
	}
	return answer(w, schema.LogEntries{Entries: convert(page.Entries, logEntryOf), Cursor: strconv.FormatUint(page.Cursor, 10)})
}

func logEntryOf(e *logs.Entry) schema.LogEntry {
	one := schema.LogEntry{ID: e.ID, Payload: e.Payload}
	one.Segment, one.Entry = logs.SegmentOf(e.Number), e.Number
	if len(e.Properties) > 0 {
		one.Properties = make(map[string]string, len(e.Properties))
	}
	for _, p := range e.Properties {
		one.Properties[p.Name] = p.Value
	}
	return one
}

func (h *logHandlers) byID(r *httpd.Request, w *httpd.Response) error {
	e, err := h.engine.ByID(r.Context(), r.Param(0), r.Param(1))
	if err != nil {
		return err
	}
	return answer(w, logEntryOf(&e))
}

func (h *logHandlers) writer(r *httpd.Request, w *httpd.Response) error {
	name, err := parseWriter(r.Body)
	if err != nil {
		return err
	}
	epoch, err := h.engine.OpenWriter(r.Context(), r.Param(0), name)
	if err != nil {
		return err
	}
	return created(w, true, schema.LogWriter{Writer: name, Epoch: epoch})
}

func (h *logHandlers) writers(r *httpd.Request, w *httpd.Response) error {
	after, limit, err := namesPage(r)
	if err != nil {
		return err
	}
	writers, err := h.engine.Writers(r.Context(), r.Param(0), after, limit)
	if err != nil {
		return err
	}
	page := schema.LogWriterPage{Writers: convert(writers, func(one *logs.Writer) schema.LogWriter { return schema.LogWriter{Writer: one.Name, Epoch: one.Epoch} })}
	if len(writers) == limit {
		page.Cursor = writers[limit-1].Name
	}
	return answer(w, page)
}

func (h *logHandlers) removeWriter(r *httpd.Request, w *httpd.Response) error {
	if err := h.engine.RemoveWriter(r.Context(), r.Param(0), r.Param(1)); err != nil {
		return err
	}
	r.Audit("writer of a log removed by an administrator", "log", r.Param(0), "writer", r.Param(1))
	return answer(w, schema.LogDeleted{Writer: r.Param(1), Deleted: true})
}

// namesPage is pageOf with the limit that a list of names has by default.
func namesPage(r *httpd.Request) (after string, limit int, err error) {
	after, limit, err = pageOf(r)
	return after, cmp.Or(limit, logs.DefaultLimit), err
}

func (h *logHandlers) put(r *httpd.Request, w *httpd.Response) error {
	ch, err := parseLogChange(r.Body)
	if err != nil {
		return err
	}
	ch.MakeOnly = true
	info, made, err := h.engine.Put(r.Context(), r.Param(0), ch)
	// A change of retain_ms deletes entries as surely as a DELETE.
	if logs.IsNotToChange(err) && r.May(httpd.Admin) {
		ch.MakeOnly = false
		if info, made, err = h.engine.Put(r.Context(), r.Param(0), ch); err == nil {
			r.Audit("settings of a log changed by an administrator", "log", r.Param(0), "settings", string(r.Body))
		}
	}
	if err != nil {
		return err
	}
	return created(w, made, infoOf(&info))
}

func (h *logHandlers) get(r *httpd.Request, w *httpd.Response) error {
	info, err := h.engine.Get(r.Context(), r.Param(0))
	if err != nil {
		return err
	}
	return answer(w, infoOf(&info))
}

func (h *logHandlers) delete(r *httpd.Request, w *httpd.Response) error {
	if err := h.engine.Delete(r.Context(), r.Param(0)); err != nil {
		return err
	}
	r.Audit("log deleted by an administrator", "log", r.Param(0))
	return answer(w, schema.LogDeleted{Log: r.Param(0), Deleted: true})
}

func (h *logHandlers) list(r *httpd.Request, w *httpd.Response) error {
	after, limit, err := namesPage(r)
	if err != nil {
		return err
	}
	infos, err := h.engine.List(r.Context(), after, limit)
	if err != nil {
		return err
	}
	page := schema.LogPage{Logs: convert(infos, infoOf)}
	if len(infos) == limit {
		page.Cursor = infos[limit-1].Name
	}
	return answer(w, page)
}

// infoOf is what an answer shows of a log.
func infoOf(i *logs.Info) schema.LogInfo {
	c := &i.Config
	return schema.LogInfo{
		Log: i.Name,
		Config: schema.LogConfig{
			Identity: c.Identity.String(), Window: c.Window, MaxKeys: c.MaxKeys, MaxBytes: c.MaxBytes,
			WhenFull: map[bool]string{true: "refuse", false: "evict"}[c.RefuseWhenFull], Retain: c.Retain, RetainBytes: c.RetainBytes,
		},
		First: i.First, Last: i.Last, Keys: i.Keys, WindowBytes: i.WindowBytes, Evicted: i.Evicted, EvictedAge: i.EvictedAge,
		Writers: i.Writers, DiskBytes: i.DiskBytes, Failed: i.Failed,
	}
}
