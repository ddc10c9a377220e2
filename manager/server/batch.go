package server

import (
	"strconv"
	"sync"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/ledger"
)

// batchCall is what a batch is read into, and answered from; it is reused.
type batchCall struct {
	// wire has what the items came with, of the JSON form only the trace.
	wire  []api.BatchItem
	items []ledger.Item
	body  []byte // the answer to one item
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

func (h *ledgerHandlers) batch(r *Request, w *Response) {
	form, err := r.Form()
	if err == nil && len(r.Body) > api.MaxBatchBytes {
		err = &Refusal{api.Problem{
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
	if err := c.readRaw(r.Body); err != nil {
		r.Error(w, err)
		return
	}
	h.ledger.Batch(r.Context(), c.items)
	c.answer(r, w, form)
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
func (c *batchCall) answer(r *Request, w *Response, form Form) {
	w.Status, w.ContentType = 200, api.ContentTypeRaw
	w.Body = api.AppendRawAnswers(w.Body[:0], len(c.items))
	recorded := 0
	for i := range c.items {
		it := &c.items[i]
		err := it.Err
		if recorded += len(it.Reply.Result); recorded > api.MaxBatchReplyBytes {
			recorded -= len(it.Reply.Result)
			err = errAskAlone
		}
		if err != nil {
			p := r.problem(err, c.wire[i].Trace)
			c.body = p.AppendJSON(c.body[:0])
			w.Body = api.AppendRawAnswer(w.Body, p.Status, p.RetryAfterSeconds, c.body)
			continue
		}
		status, after := statusOf(it)
		c.body = api.AppendRawReply(c.body[:0], it.Reply.State, it.Reply.ExpiresIn, it.Reply.Result)
		w.Body = api.AppendRawAnswer(w.Body, status, after, c.body)
	}
}

// statusOf is the status of a call that succeeded, and after how many seconds it is to be
// repeated.
func statusOf(it *ledger.Item) (status, retryAfter int) {
	if it.Op == ledger.OpReserve {
		return reserveStatus(it.Reply.State)
	}
	return 200, 0
}

var errAskAlone = &Refusal{api.Problem{
	Status: 503, Code: api.CodeAskAlone, Title: "Ask alone",
	Detail: "the recorded answer does not fit beside the others of this batch; make this call by itself",
}}
