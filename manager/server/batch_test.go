package server

import (
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// rawItem is an item of a batch in the raw form.
func rawItem(op api.Op, message []byte) []byte { return api.AppendRawItem(nil, op, nil, message) }

// rawBatch is a batch in the raw form.
func rawBatch(items ...[]byte) []byte {
	b := api.AppendRawBatch(nil, len(items))
	for _, it := range items {
		b = append(b, it...)
	}
	return b
}

func rawReserve(key, token string) []byte {
	return rawItem(api.OpReserve, (&api.ReserveRequest{Key: key, Token: token}).AppendRaw(nil))
}

func rawCommit(key, token, body string) []byte {
	r := api.FinishRequest{Key: key, Token: token, Result: api.Result{Status: 200, Body: []byte(body)}}
	return rawItem(api.OpCommit, r.AppendRaw(nil))
}

// TestRawBatch: each item has the answer that it would have by itself.
func TestRawBatch(t *testing.T) {
	onBothEngines(t, func(t *testing.T, engine string) {
		s := newSite(t, engine, siteOptions{})
		a := s.do("POST", api.PathBatch, api.ContentTypeRaw, string(rawBatch(
			rawReserve("k", "t1"), rawReserve("k", "t2"), rawCommit("k", "t1", "done"), rawReserve("k", "t2"), rawReserve("other", ""),
			rawItem(api.OpRelease, (&api.ReleaseRequest{Key: "k", Token: "t2"}).AppendRaw(nil)),
			rawItem(77, nil), rawItem(api.OpRenew, []byte("?")),
		)))
		if a.status != 200 || a.header.Get("content-type") != api.ContentTypeRaw {
			t.Fatalf("%d %s", a.status, a.body)
		}
		answers, err := api.ViewRawAnswers(nil, []byte(a.body))
		if err != nil || len(answers) != 8 {
			t.Fatalf("%d answers, %v", len(answers), err)
		}
		for i, want := range []struct {
			status, after int
			state         api.State
			code          api.Code
		}{
			{201, 0, api.StateReserved, ""}, {202, 1, api.StatePending, ""}, {200, 0, api.StateCommitted, ""}, {200, 0, api.StateCommitted, ""},
			{400, 0, 0, api.CodeInvalidRequest}, {409, 0, 0, api.CodeFenced}, {400, 0, 0, api.CodeInvalidRequest}, {400, 0, 0, api.CodeInvalidRequest},
		} {
			got := answers[i]
			var reply api.ReserveReply
			var p api.Problem
			err := p.ParseJSON(got.Body)
			if want.code == "" {
				err = reply.ParseRaw(got.Body)
			}
			if err != nil || got.Status != want.status || got.RetryAfterSeconds != want.after || reply.State != want.state || p.Code != want.code {
				t.Errorf("item %d: %+v: %v %v %v", i, got, reply.State, p, err)
			}
			if i == 3 && string(reply.Result.Body) != "done" {
				t.Errorf("recorded answer %+v", reply.Result)
			}
		}
	})
}
