package server

import (
	"strconv"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// batchCall is what a batch is read into, and answered from; it is reused.
type batchCall struct {
	// wire has what the items came with, of the JSON form only the trace.
	wire  []api.BatchItem
	items []ledger.Item
	body  []byte // the raw answer to one item
}

var batchCalls = sync.Pool{New: func() any { return new(batchCall) }}

// maxKeptAnswer bounds the buffer of a batchCall that is reused.
const maxKeptAnswer = 64 << 10

func (c *batchCall) free() {
	for i := range c.wire {
		clear(c.wire[i].Trace)
		c.wire[i] = api.BatchItem{Trace: c.wire[i].Trace[:0]}
	}
	clear(c.items)
	c.wire, c.items = c.wire[:0], c.items[:0]
	if cap(c.body) > maxKeptAnswer {
		c.body = nil
	}
	batchCalls.Put(c)
}

// batchOps are the ledger's names for the calls.
var batchOps = map[api.Op]ledger.Op{
	api.OpReserve: ledger.OpReserve, api.OpCommit: ledger.OpCommit, api.OpReject: ledger.OpReject,
	api.OpRelease: ledger.OpRelease, api.OpRenew: ledger.OpRenew, api.OpUnknown: ledger.OpUnknown,
}

func (h *ledgerHandlers) batch(r *httpd.Request, w *httpd.Response) {
	form, err := r.Form()
	if err == nil && len(r.Body) > api.MaxBatchBytes {
		err = &httpd.Refusal{P: api.Problem{
			Status: 413, Code: api.CodeTooLarge, Title: "Too large",
			Detail: "a batch has at most " + strconv.Itoa(api.MaxBatchBytes) + " bytes; nothing of it was done",
		}}
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	c := batchCalls.Get().(*batchCall)
	defer c.free()
	if form == httpd.FormRaw {
		err = c.readRaw(r.Body)
	} else {
		err = c.readJSON(r.Body)
	}
	if err != nil {
		r.Error(w, err)
		return
	}
	for i := range c.items {
		h.leaveOut(&c.items[i])
	}
	start := began(r)
	h.ledger.Batch(calling(r), c.items)
	for i := range c.items {
		it := &c.items[i]
		if _, elsewhere := h.homeOf(it.Err); elsewhere {
			it.Err = errAskAlone
		}
		if it.Err == nil && (it.Op == ledger.OpCommit || it.Op == ledger.OpReject) {
			it.Reply.ExpiresIn = h.untold(form, it.Reply.State, it.Finish.TTL)
		}
		it.Reply.ExpiresIn = h.cacheable(form, it.Reply.State, it.Reply.ExpiresIn)
	}
	c.itemSpans(r, start)
	c.answer(r, w, form)
}

// readJSON reads the JSON form.
func (c *batchCall) readJSON(b []byte) error {
	return api.EachJSONItem(b, func(v gjson.Result) error {
		if len(c.items) == api.MaxBatchItems {
			return &httpd.Refusal{P: api.Problem{
				Status: 413, Code: api.CodeTooLarge, Title: "Too large",
				Detail: "a batch has at most " + strconv.Itoa(api.MaxBatchItems) + " items; nothing of it was done",
			}}
		}
		c.items = append(c.items, ledger.Item{})
		it := &c.items[len(c.items)-1]
		var in api.BatchCall
		if it.Err = in.ParseJSON(v); it.Err == nil {
			it.Op, it.Reserve, it.Release = batchOps[in.Op], in.Reserve, in.Release
			if it.Op == ledger.OpCommit || it.Op == ledger.OpReject {
				if it.Err = in.Finish.Validate(); it.Err == nil {
					it.Finish = *ledger.NewFinish(&in.Finish)
				}
			}
		}
		c.wire = append(c.wire, api.BatchItem{Op: in.Op, Trace: in.Trace})
		return nil
	})
}

// readRaw reads the raw form. The items alias b.
func (c *batchCall) readRaw(b []byte) (err error) {
	if c.wire, err = api.ViewRawBatch(c.wire, b); err != nil {
		return err
	}
	for i := range c.wire {
		c.items = append(c.items, ledger.Item{})
		it := &c.items[i]
		it.Err = readRawItem(it, &c.wire[i])
	}
	return nil
}

func readRawItem(it *ledger.Item, wire *api.BatchItem) error {
	op, ok := batchOps[wire.Op]
	if !ok {
		return &api.FieldError{Field: "op", Value: strconv.Itoa(int(wire.Op)), Allowed: "must be 1 to 6"}
	}
	it.Op = op
	switch op {
	case ledger.OpRelease:
		return it.Release.ViewRaw(wire.Message)
	case ledger.OpCommit, ledger.OpReject:
		var in api.FinishRequest
		result, err := in.ViewRawFinish(wire.Message)
		it.Finish = rawFinish(&in, result)
		return err
	default:
		return it.Reserve.ViewRaw(wire.Message)
	}
}

// answer answers in the form of the request.
func (c *batchCall) answer(r *httpd.Request, w *httpd.Response, form httpd.Form) {
	w.JSON(200)
	if form == httpd.FormRaw {
		w.ContentType = api.ContentTypeRaw
		w.Body = api.AppendRawAnswers(w.Body, len(c.items))
	} else {
		w.Body = append(w.Body, `{"results":[`...)
	}
	recorded := 0
	for i := range c.items {
		it := &c.items[i]
		if recorded += len(it.Reply.Result); recorded > api.MaxBatchReplyBytes {
			recorded -= len(it.Reply.Result)
			it.Err = errAskAlone
		}
		if form == httpd.FormRaw {
			w.Body = c.appendRaw(w.Body, r, i)
			continue
		}
		if i > 0 {
			w.Body = append(w.Body, ',')
		}
		w.Body = c.appendJSON(w.Body, r, i)
	}
	if form != httpd.FormRaw {
		w.Body = append(w.Body, `]}`...)
	}
}

// appendRaw appends the raw answer to the i-th item.
func (c *batchCall) appendRaw(dst []byte, r *httpd.Request, i int) []byte {
	it := &c.items[i]
	if it.Err != nil {
		p := r.Problem(it.Err, c.wire[i].Trace)
		c.body = p.AppendJSON(c.body[:0])
		return api.AppendRawAnswer(dst, p.Status, p.RetryAfterSeconds, c.body)
	}
	status, after := itemStatus(it)
	c.body = api.AppendRawReply(c.body[:0], it.Reply.State, it.Reply.ExpiresIn, it.Reply.Result)
	return api.AppendRawAnswer(dst, status, after, c.body)
}

// appendJSON appends the JSON answer to the i-th item: that of the single call, with its status,
// which a problem has anyway, and its Retry-After.
func (c *batchCall) appendJSON(dst []byte, r *httpd.Request, i int) []byte {
	it, begin := &c.items[i], len(dst)
	member := func(name string, v int) {
		dst = append(append(dst[:len(dst)-1], name...), ':')
		dst = append(strconv.AppendInt(dst, int64(v), 10), '}')
	}
	if it.Err == nil {
		dst, it.Err = appendItem(dst, it)
	}
	status, after := itemStatus(it)
	if it.Err != nil {
		p := r.Problem(it.Err, c.wire[i].Trace)
		dst, after = p.AppendJSON(dst[:begin]), p.RetryAfterSeconds
	} else {
		member(`,"status"`, status)
	}
	if after > 0 {
		member(`,"retry_after"`, after)
	}
	return dst
}

// itemStatus is how a call that was not refused is answered.
func itemStatus(it *ledger.Item) (status, retryAfter int) {
	if it.Op == ledger.OpReserve {
		return reserveStatus(it.Reply.State)
	}
	return 200, 0
}

// appendItem appends the JSON answer to a call that succeeded.
func appendItem(dst []byte, it *ledger.Item) ([]byte, error) {
	switch it.Op {
	case ledger.OpCommit, ledger.OpReject, ledger.OpRelease:
		return appendState(dst, it.Reply.State), nil
	default:
		return appendReply(dst, &it.Reply, it.Reserve.Token)
	}
}

var errAskAlone = &httpd.Refusal{P: api.Problem{
	Status: 503, Code: api.CodeAskAlone, Title: "Ask alone",
	Detail: "the recorded answer does not fit beside the others of this batch, or another data centre decides about the key; make this call by itself",
}}
