package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/managertest/calls"
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

// httpCalls makes one call after the other over HTTP, and needs less CPU time than a http.Client.
type httpCalls struct {
	net.Conn
	in *bufio.Reader
}

func dialHTTP(ctx context.Context, addr string) (*httpCalls, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &httpCalls{conn, bufio.NewReader(conn)}, nil
}

func (c *httpCalls) do(op api.Op, token, key string) error {
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
	if err == nil && resp.StatusCode > 299 {
		err = fmt.Errorf("manager: %d %s", resp.StatusCode, body)
	}
	return err
}

// together makes a call for each key on a stream, as the gate does.
func together(stream *calls.Stream, op api.Op, token string, keys []string) error {
	all := make([]calls.Call, len(keys))
	for i, key := range keys {
		all[i] = calls.Call{Op: op, Message: ledgerMessage(op, token, key)}
	}
	replies, err := stream.Do(all...)
	for _, r := range replies {
		if r.Status > 299 {
			return fmt.Errorf("manager: a call got %d %s", r.Status, r.Body)
		}
	}
	return err
}

// managerKeys is the ledger of a manager. Each caller has connections of its own.
func managerKeys(ctx context.Context, t *table, addr string) *keyStore {
	var single [maxCallers]*httpCalls
	var streams [maxCallers]*calls.Stream
	t.onStop(func() {
		for caller := range maxCallers {
			if single[caller] != nil {
				_ = single[caller].Close()
			}
			if streams[caller] != nil {
				streams[caller].Close()
			}
		}
	})
	do := func(caller int, op api.Op, token string, keys []string) (err error) {
		if len(keys) == 1 {
			if single[caller] == nil {
				if single[caller], err = dialHTTP(ctx, addr); err != nil {
					return err
				}
			}
			return single[caller].do(op, token, keys[0])
		}
		if streams[caller] == nil {
			if streams[caller], err = calls.Open(ctx, "http://"+addr); err != nil {
				return err
			}
		}
		return together(streams[caller], op, token, keys)
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
