package server

import (
	"cmp"
	"encoding/base64"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/logs"
)

// LogRoutes are the calls of writers, readers and operators on logs.
func LogRoutes(engine logs.Engine) []httpd.Route {
	h := &logHandlers{engine}
	return []httpd.Route{
		{Method: "GET", Path: "/v1/logs", Roles: readers, Handle: h.list},
		{Method: "PUT", Path: "/v1/logs/{log}", Roles: submitters | httpd.Operator, Handle: h.json(h.put)},
		{Method: "GET", Path: "/v1/logs/{log}", Roles: submitters | httpd.Worker | httpd.Operator, Handle: h.get},
		{Method: "DELETE", Path: "/v1/logs/{log}", Roles: httpd.Admin, Handle: h.delete},
		{Method: "POST", Path: "/v1/logs/{log}/entries", Roles: submitters, Handle: h.json(h.append)},
		{Method: "GET", Path: "/v1/logs/{log}/entries", Roles: httpd.Worker | readers, Handle: h.read},
		{Method: "GET", Path: "/v1/logs/{log}/entries/by-id/{id}", Roles: httpd.Worker | readers, Handle: h.byID},
		{Method: "POST", Path: "/v1/logs/{log}/writers", Roles: submitters, Handle: h.json(h.writer)},
		{Method: "GET", Path: "/v1/logs/{log}/writers", Roles: readers, Handle: h.writers},
		{Method: "DELETE", Path: "/v1/logs/{log}/writers/{writer}", Roles: httpd.Admin, Handle: h.removeWriter},
	}
}

type logHandlers struct {
	engine logs.Engine
}

// json is a handler for a body in JSON.
func (h *logHandlers) json(handle func(*httpd.Request, *httpd.Response) error) httpd.Handler {
	return func(r *httpd.Request, w *httpd.Response) {
		err := r.JSONOnly()
		if err == nil {
			err = handle(r, w)
		}
		if err != nil {
			r.Error(w, err)
		}
	}
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
		w.JSON(appendStatus(&out[0]))
		o := jsonObject{b: w.Body}
		o.open()
		o.outcome(log, &out[0])
		o.close()
		w.Body = o.b
		return nil
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
		o := jsonObject{b: w.Body}
		o.open()
		o.num("status", int64(appendStatus(&out[i])))
		o.outcome(log, &out[i])
		o.close()
		w.Body = o.b
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

// outcome appends the members of an answer to an append. A duplicate whose number is not known
// any more has none.
func (o *jsonObject) outcome(log string, out *logs.Outcome) {
	o.str("log", log)
	if out.Number > 0 {
		o.num("segment", int64(logs.SegmentOf(out.Number)))
		o.num("entry", int64(out.Number))
	}
	o.str("id", out.ID)
	o.flag("duplicate", out.Duplicate)
}

func (h *logHandlers) read(r *httpd.Request, w *httpd.Response) {
	q, err := parseRead(r)
	if err != nil {
		r.Error(w, err)
		return
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
		r.Error(w, err)
		return
	}
	w.JSON(200)
	b := append(w.Body, `{"entries":[`...)
	for i := range page.Entries {
		if i > 0 {
			b = append(b, ',')
		}
		o := jsonObject{b: b}
		o.entry(&page.Entries[i])
		b = o.b
	}
	o := jsonObject{b: append(b, ']'), comma: true}
	o.str("cursor", strconv.FormatUint(page.Cursor, 10))
	o.close()
	w.Body = o.b
}

// entry appends an entry as an object.
func (o *jsonObject) entry(e *logs.Entry) {
	o.open()
	o.num("segment", int64(logs.SegmentOf(e.Number)))
	o.num("entry", int64(e.Number))
	o.str("id", e.ID)
	o.name("payload")
	o.b = append(o.b, '"')
	o.b = base64.StdEncoding.AppendEncode(o.b, e.Payload)
	o.b = append(o.b, '"')
	o.name("properties")
	o.open()
	for _, p := range e.Properties {
		o.key(p.Name)
		o.b = api.AppendJSONString(o.b, p.Value)
	}
	o.close()
	o.close()
}

func (h *logHandlers) byID(r *httpd.Request, w *httpd.Response) {
	e, err := h.engine.ByID(r.Context(), r.Param(0), r.Param(1))
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.entry(&e)
	w.Body = o.b
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
	w.JSON(201)
	o := jsonObject{b: w.Body}
	o.writer(&logs.Writer{Name: name, Epoch: epoch})
	w.Body = o.b
	return nil
}

// writer appends a writer as an object.
func (o *jsonObject) writer(w *logs.Writer) {
	o.open()
	o.str("writer", w.Name)
	o.num("epoch", int64(w.Epoch))
	o.close()
}

func (h *logHandlers) writers(r *httpd.Request, w *httpd.Response) {
	after, limit, err := page(r)
	var writers []logs.Writer
	if err == nil {
		writers, err = h.engine.Writers(r.Context(), r.Param(0), after, limit)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	cursor := ""
	if len(writers) == limit {
		cursor = writers[limit-1].Name
	}
	writePage(w, "writers", writers, cursor, (*jsonObject).writer)
}

func (h *logHandlers) removeWriter(r *httpd.Request, w *httpd.Response) {
	if err := h.engine.RemoveWriter(r.Context(), r.Param(0), r.Param(1)); err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("writer of a log removed by an administrator", "log", r.Param(0), "writer", r.Param(1))
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.str("writer", r.Param(1))
	o.flag("deleted", true)
	o.close()
	w.Body = o.b
}

// page is pageOf with the limit that a list of names has by default.
func page(r *httpd.Request) (after string, limit int, err error) {
	after, limit, err = pageOf(r)
	return after, cmp.Or(limit, logs.DefaultLimit), err
}

func (h *logHandlers) put(r *httpd.Request, w *httpd.Response) error {
	ch, err := parseLogChange(r.Body)
	if err != nil {
		return err
	}
	ch.MakeOnly = true
	info, created, err := h.engine.Put(r.Context(), r.Param(0), ch)
	// A change of retain_ms deletes entries as surely as a DELETE.
	if logs.IsNotToChange(err) && r.May(httpd.Admin) {
		ch.MakeOnly = false
		if info, created, err = h.engine.Put(r.Context(), r.Param(0), ch); err == nil {
			r.Audit("settings of a log changed by an administrator", "log", r.Param(0), "settings", string(r.Body))
		}
	}
	if err != nil {
		return err
	}
	w.JSON(200)
	if created {
		w.Status = 201
	}
	o := jsonObject{b: w.Body}
	o.logInfo(&info)
	w.Body = o.b
	return nil
}

func (h *logHandlers) get(r *httpd.Request, w *httpd.Response) {
	info, err := h.engine.Get(r.Context(), r.Param(0))
	if err != nil {
		r.Error(w, err)
		return
	}
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.logInfo(&info)
	w.Body = o.b
}

func (h *logHandlers) delete(r *httpd.Request, w *httpd.Response) {
	if err := h.engine.Delete(r.Context(), r.Param(0)); err != nil {
		r.Error(w, err)
		return
	}
	r.Audit("log deleted by an administrator", "log", r.Param(0))
	w.JSON(200)
	o := jsonObject{b: w.Body}
	o.open()
	o.str("log", r.Param(0))
	o.flag("deleted", true)
	o.close()
	w.Body = o.b
}

func (h *logHandlers) list(r *httpd.Request, w *httpd.Response) {
	after, limit, err := page(r)
	var infos []logs.Info
	if err == nil {
		infos, err = h.engine.List(r.Context(), after, limit)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	cursor := ""
	if len(infos) == limit {
		cursor = infos[limit-1].Name
	}
	writePage(w, "logs", infos, cursor, (*jsonObject).logInfo)
}

// logInfo appends what is known of a log as an object.
func (o *jsonObject) logInfo(i *logs.Info) {
	c := &i.Config
	o.open()
	o.str("log", i.Name)
	o.str("identity", c.Identity.String())
	o.num("window_ms", c.Window.Milliseconds())
	o.num("max_keys", int64(c.MaxKeys))
	o.num("max_bytes", c.MaxBytes)
	o.str("when_full", map[bool]string{true: "refuse", false: "evict"}[c.RefuseWhenFull])
	o.num("retain_ms", c.Retain.Milliseconds())
	o.num("retain_bytes", c.RetainBytes)
	o.num("first", int64(i.First))
	o.num("last", int64(i.Last))
	o.num("keys", int64(i.Keys))
	o.num("window_bytes", i.WindowBytes)
	o.num("evicted", int64(i.Evicted))
	o.num("evicted_age_ms", int64(i.EvictedAge/time.Millisecond))
	o.num("writers", int64(i.Writers))
	o.num("disk_bytes", i.DiskBytes)
	o.text("failed", i.Failed)
	o.close()
}
