package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/api/schema"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/httpd/httpdtest"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/shard"
	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/mem"
)

// A stream that means another shard, or last met another ledger, does nothing.
func TestStreamForAnotherShardDoesNothing(t *testing.T) {
	s := shardSite(t, shard.Want{Name: "A"})
	client := httpdtest.HTTP2(t)
	for _, header := range [][]string{{api.HeaderShard, "B"}, {api.HeaderLedger, "nonsense"}} {
		g := s.gate(client, header...)
		g.send(g.call(api.OpReserve, reserveOf("a", "t", 0)), g.call(api.OpCommit, commitOf("b", "t", nil)))
		want, end := 421, "9"
		if header[0] == api.HeaderLedger {
			want, end = 400, "3"
		}
		for range 2 {
			if r, _ := g.reply(); r.Status != want {
				t.Errorf("%v: %d %s", header, r.Status, r.Body)
			}
		}
		g.wantEnd(end)
	}
	g := s.gate(client, api.HeaderShard, "A")
	if h := g.Response.Header; h.Get(api.HeaderShard) != "A" || h.Get(api.HeaderLedger) == "" {
		t.Errorf("headers %v", h)
	}
	g.send(g.call(api.OpReserve, reserveOf("a", "t", 0)))
	r, _ := g.wantReply(1, 201, api.StateReserved)
	if _, ok := api.ParseMark(r.Mark); !ok {
		t.Errorf("mark %q", r.Mark)
	}
}

// A large answer needs a stream for large messages.
func TestStreamForSmallMessagesRefusesLargeAnswers(t *testing.T) {
	s := newSite(t, siteOptions{ledger: ledger.Options{MaxResultBytes: 4 << 20}})
	client := httpdtest.HTTP2(t)
	small, large := s.gate(client), s.gate(client, api.HeaderStream, api.StreamLarge)
	body := bytes.Repeat([]byte{'x'}, 1<<20)
	for name, size := range map[string]int{"fits": api.MaxSmallReply - 200, "large": len(body)} {
		n := large.n
		large.send(large.call(api.OpCommit, commitOf(name, "t", body[:size])))
		large.wantReply(n+1, 200, api.StateCommitted)
		large.send(large.call(api.OpReserve, reserveOf(name, "u", 0)))
		if _, in := large.wantReply(n+2, 200, api.StateCommitted); len(in.Result.Body) != size {
			t.Errorf("%d bytes", len(in.Result.Body))
		}
		small.send(small.call(api.OpReserve, reserveOf(name, "u", 0)))
		r, _ := small.reply()
		var p api.Problem
		if name == "fits" && r.Status != 200 || name == "large" && (r.Status != 503 || schema.Unmarshal(r.Body, &p) != nil || p.Code != api.CodeLargeAnswer) {
			t.Errorf("%s: %d %.100s", name, r.Status, r.Body)
		}
	}
}

// unreachedStore is a store whose server has gone.
type unreachedStore struct{ store.Store }

func (unreachedStore) Update(context.Context, func(store.Tx) error) error {
	return fmt.Errorf("%w; %w", store.ErrUnavailable, store.ErrUnreached)
}

// A gate has nothing to give back after a call that did not reach the store.
func TestStreamSaysThatTheStoreWasNotReached(t *testing.T) {
	s := newSite(t, siteOptions{store: unreachedStore{mem.New(mem.Options{})}})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("a", "t", 0)), g.call(api.OpCommit, commitOf("b", "t", nil)))
	for range 2 {
		var p api.Problem
		if r, _ := g.reply(); r.Status != 503 || schema.Unmarshal(r.Body, &p) != nil || p.Code != api.CodeStoreUnreachable {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
}

func TestStreamEndsAfterAnUnreadableCall(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("a", "t", 0)), []byte{0xff})
	g.wantReply(1, 201, api.StateReserved)
	g.wantEnd("3")
}

// A manager that cannot make any call has no streams: their clients have to find another one. It answers no call that it did not make.
func TestManagerThatDoesNotServeHasNoStreams(t *testing.T) {
	var unready atomic.Pointer[string]
	why := "the store cannot be reached"
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Unready: func() string {
		if why := unready.Load(); why != nil {
			return *why
		}
		return ""
	}}}})
	client := httpdtest.HTTP2(t)
	for _, stop := range []func(){func() { unready.Store(&why) }, func() { s.server.Refuse(why) }} {
		idle, busy := s.gate(client), s.gate(client)
		for _, g := range []*gateStream{idle, busy} {
			g.send(g.call(api.OpPing, nil))
			g.wantReply(1, 200, api.StateNone)
		}
		stop()
		busy.send(busy.call(api.OpReserve, reserveOf("a", "t", 0)))
		for _, g := range []*gateStream{idle, busy} {
			if b, err := g.Receive(); err != io.EOF {
				t.Errorf("%q, %v", b, err)
			}
			if code, message := g.Status(); code != "14" || message != why {
				t.Errorf("the stream ended with %q %q", code, message)
			}
		}
		if st := s.Stream(client, api.PathCalls); st.Response.StatusCode != 503 || st.Response.Header.Get("retry-after") == "" {
			t.Errorf("a stream began: %v", st.Response)
		}
		unready.Store(nil)
	}
}

// rawCodec has bytes for messages.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (rawCodec) Name() string                       { return "proto" }

// A client of the usual library opens the stream, is answered, and learns why it was refused or ended.
func TestStreamOfAStockClient(t *testing.T) {
	auth := tokens(t, "0123456789abcdef", "fedcba9876543210")
	s := newSite(t, siteOptions{server: Options{Options: httpd.Options{Auth: auth}}})
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	desc := &grpc.StreamDesc{StreamName: api.StreamMethod, ServerStreams: true, ClientStreams: true}
	open := func(token string) grpc.ClientStream {
		t.Helper()
		st, err := conn.NewStream(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), desc, api.PathCalls)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	var got []byte
	if err := open("none of them at all").RecvMsg(&got); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without credentials: %v", err)
	}
	st := open("0123456789abcdef")
	for i := range 3 {
		call := api.AppendStreamCall(nil, uint64(i+1), api.OpReserve, nil, reserveOf("k"+strconv.Itoa(i), "t", 0))
		if err := errors.Join(st.SendMsg(&call), st.RecvMsg(&got)); err != nil {
			t.Fatal(err)
		}
		var r api.StreamReply
		if err := r.View(got); err != nil || r.Number != uint64(i+1) || r.Status != 201 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	bad := []byte{0xff}
	if err := st.SendMsg(&bad); err != nil {
		t.Fatal(err)
	}
	if err := st.RecvMsg(&got); status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() == "" {
		t.Errorf("after nonsense: %v", err)
	}
}

// A durability that the ledger cannot give is refused, also while other reserves wait for the key.
func TestStreamChecksTheDurabilityBehindAQueue(t *testing.T) {
	s := newSite(t, siteOptions{})
	g := s.gate(httpdtest.HTTP2(t))
	g.send(g.call(api.OpReserve, reserveOf("k", "a", 0)))
	g.wantReply(1, 201, api.StateReserved)
	g.send(g.call(api.OpReserve, reserveOf("k", "b", time.Minute)))
	s.Eventually("it waits", func() bool { return s.waiters() == 1 })
	g.send(g.call(api.OpReserve, (&api.ReserveRequest{Key: "k", Token: "c", Wait: time.Second, Durability: api.DurabilityRegion}).AppendRaw(nil)))
	if r, _ := g.reply(); r.Number != 3 || r.Status != 400 {
		t.Errorf("call %d: %d %s", r.Number, r.Status, r.Body)
	}
}
