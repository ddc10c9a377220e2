package apitest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
)

// drawResult makes results whose strings survive JSON, that is, are UTF-8.
func drawResult(t *rapid.T) api.Result {
	r := api.Result{Status: rapid.IntRange(100, api.MaxStatus).Draw(t, "status")}
	for range rapid.IntRange(0, 4).Draw(t, "headers") {
		r.Headers = append(r.Headers, api.Header{
			Name:  rapid.StringMatching(`[a-z][a-z0-9-]{0,10}`).Draw(t, "name"),
			Value: rapid.StringMatching(`[ -~é]{0,20}`).Draw(t, "value"),
		})
	}
	if r.BodyOmitted = rapid.Bool().Draw(t, "omitted"); !r.BodyOmitted {
		r.Body = rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "body")
	}
	return r
}

func TestMessagesSurviveTheirEncodings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[!-~]{1,40}`)
		millis := rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(api.MaxTTL/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
		})
		reserve := api.ReserveRequest{
			Key: word.Draw(t, "key"), Scope: word.Draw(t, "scope"), Fingerprint: word.Draw(t, "fp"), Token: word.Draw(t, "token"),
			PendingTTL: millis.Draw(t, "ttl"), Wait: millis.Draw(t, "wait"), UnknownTTL: millis.Draw(t, "unknown ttl"),
		}
		if rapid.Bool().Draw(t, "no unknown") {
			reserve.UnknownTTL = api.NoUnknown
		}
		finish := api.FinishRequest{
			Key: reserve.Key, Scope: reserve.Scope, Token: reserve.Token, Fingerprint: reserve.Fingerprint, TTL: reserve.Wait, Result: drawResult(t),
			Durability: api.Durability(rapid.IntRange(0, 2).Draw(t, "durability")),
		}
		release := api.ReleaseRequest{Key: reserve.Key, Scope: reserve.Scope, Token: reserve.Token}
		reply := api.ReserveReply{State: rapid.SampledFrom([]api.State{api.StateReserved, api.StatePending, api.StateCommitted, api.StateRejected}).Draw(t, "state"), ExpiresIn: reserve.Wait}
		if reply.State.Terminal() {
			reply.Result = finish.Result
		}
		check := func(what string, err error, want, got any) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", what, diff)
			}
		}
		var r api.ReserveRequest
		check("reserve JSON", schema.Parse(schema.Append(nil, &reserve), &r), reserve, r)
		check("reserve raw", r.ParseRaw(reserve.AppendRaw(nil)), reserve, r)
		check("reserve valid", reserve.Validate(), 0, 0)
		var f api.FinishRequest
		check("finish JSON", schema.Parse(schema.Append(nil, &finish), &f), finish, canon(f))
		check("finish raw", f.ParseRaw(finish.AppendRaw(nil)), finish, canon(f))
		check("reserve view", r.ViewRaw(reserve.AppendRaw(nil)), reserve, r)
		head := finish
		head.Result = api.Result{}
		result, err := f.ViewRawFinish(finish.AppendRaw(nil))
		check("finish view", err, head, f)
		check("result of the finish view", err, finish.Result.AppendRaw(nil), result)
		status, n, err := api.CheckRawResult(result)
		check("check result", err, [2]int{finish.Result.Status, len(finish.Result.Body)}, [2]int{status, n})
		var l api.ReleaseRequest
		check("release JSON", schema.Parse(schema.Append(nil, &release), &l), release, l)
		check("release raw", l.ParseRaw(release.AppendRaw(nil)), release, l)
		check("release view", l.ViewRaw(release.AppendRaw(nil)), release, l)
		var a api.ReserveReply
		check("reply raw", a.ParseRaw(reply.AppendRaw(nil)), reply, canonReply(a))
		var encoded []byte
		if reply.State.Terminal() {
			encoded = result
		}
		check("reply around a raw result", nil, reply.AppendRaw(nil), api.AppendRawReply(nil, reply.State, reply.ExpiresIn, encoded))
	})
}

// canon makes no difference between an empty list and none.
func canon(f api.FinishRequest) api.FinishRequest {
	f.Result = canonResult(f.Result)
	return f
}

func canonReply(r api.ReserveReply) api.ReserveReply {
	r.Result = canonResult(r.Result)
	return r
}

func canonResult(r api.Result) api.Result {
	if len(r.Body) == 0 {
		r.Body = nil
	}
	if len(r.Headers) == 0 {
		r.Headers = nil
	}
	return r
}
