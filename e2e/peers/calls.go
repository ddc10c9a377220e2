package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/oncegate/oncegate/manager/api"
)

var (
	ledgerScope       = strings.Repeat("s", 43)
	ledgerFingerprint = strings.Repeat("f", 43)
)

// ledgerMessage reserves a key, or commits an answer of 256 bytes for it.
func ledgerMessage(op api.Op, token, key string) []byte {
	if op == api.OpReserve {
		return (&api.ReserveRequest{Key: key, Scope: ledgerScope, Token: token + key, Fingerprint: ledgerFingerprint}).AppendRaw(nil)
	}
	return (&api.FinishRequest{Key: key, Scope: ledgerScope, Token: token + key, Fingerprint: ledgerFingerprint, Result: api.Result{
		Status: 201, Headers: []api.Header{{Name: "content-type", Value: "application/json"}}, Body: []byte(answer256),
	}}).AppendRaw(nil)
}

// ledgerCalls makes calls at a manager's ledger. Each caller has its own.
type ledgerCalls interface {
	// do makes a call for each key.
	do(op api.Op, token string, keys []string) error
	io.Closer
}

// httpCalls makes one call after the other over HTTP, and needs less CPU time than a http.Client.
type httpCalls struct {
	net.Conn
	in *bufio.Reader
}

func (c *httpCalls) do(op api.Op, token string, keys []string) error {
	for _, key := range keys {
		message := ledgerMessage(op, token, key)
		head := fmt.Sprintf("POST %s HTTP/1.1\r\nhost: m\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n", op.Path(), api.ContentTypeRaw, len(message))
		if _, err := c.Write(append([]byte(head), message...)); err != nil {
			return err
		}
		resp, err := http.ReadResponse(c.in, nil)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if resp.StatusCode > 299 {
			return fmt.Errorf("manager: %d %s", resp.StatusCode, body)
		}
	}
	return nil
}

// streamCalls makes calls together on a gRPC stream, as the gate does.
type streamCalls struct {
	*grpc.ClientConn
	stream grpc.ClientStream
}

// rawCodec sends and receives messages that are bytes already.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "raw" }

func dialLedger(ctx context.Context, addr string, together bool) (ledgerCalls, error) {
	if !together {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		return &httpCalls{conn, bufio.NewReader(conn)}, err
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, api.PathCalls, grpc.ForceCodec(rawCodec{}))
	return &streamCalls{conn, stream}, err
}

func (c *streamCalls) do(op api.Op, token string, keys []string) error {
	for i, key := range keys {
		if err := c.stream.SendMsg(api.AppendStreamCall(nil, uint64(i+1), op, nil, ledgerMessage(op, token, key))); err != nil {
			return err
		}
	}
	for range keys {
		var message []byte
		if err := c.stream.RecvMsg(&message); err != nil {
			return err
		}
		var r api.StreamReply
		if err := r.View(message); err != nil {
			return err
		}
		if r.Status > 299 {
			return fmt.Errorf("manager: a call got %d %s", r.Status, r.Body)
		}
	}
	return nil
}

// managerKeys is the ledger of a manager.
func managerKeys(ctx context.Context, t *table, addr string) *keyStore {
	var single, together [maxCallers]ledgerCalls
	t.onStop(func() {
		for _, c := range append(single[:], together[:]...) {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	do := func(caller int, op api.Op, token string, keys []string) error {
		c := &single[caller]
		if len(keys) > 1 {
			c = &together[caller]
		}
		if *c == nil {
			calls, err := dialLedger(ctx, addr, len(keys) > 1)
			if err != nil {
				return err
			}
			*c = calls
		}
		return (*c).do(op, token, keys)
	}
	return &keyStore{
		step: func(_ context.Context, caller int, keys []string, commit bool) error {
			if commit {
				return do(caller, api.OpCommit, "", keys)
			}
			return do(caller, api.OpReserve, "", keys)
		},
		lookup: func(_ context.Context, caller int, key string) error {
			return do(caller, api.OpReserve, "another", []string{key})
		},
	}
}
