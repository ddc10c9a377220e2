package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	wasmfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/oncegate/oncegate/envoy"
)

// A client that asks for the path of recorded answers and does not send its body gets its refusal from the gate, and no
// connection of the manager waits for it.
func TestClientsDoNotReachRecordedAnswers(t *testing.T) {
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: unary, bootstrap: upstreamHTTP2}
		s.paymentsAddr, s.edit, s.settings = newRPCServer(t).address, answerRouteToManager(t), []string{"--admin", "127.0.0.1:0"}
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		for _, path := range []string{"/oncegate/answer", "/oncegate/answer?a"} {
			status, details, err := halfRequest(s.proxies[0].address, path)
			if err != nil {
				t.Fatal(err)
			}
			if status != 404 || details != "not-found" {
				t.Errorf("%s: status %d, idempotency-status %q", path, status, details)
			}
		}
		admin, err := s.manager.addr("admin")
		if err != nil {
			t.Fatal(err)
		}
		text, err := fetch("http://" + admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		counts := 0
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "oncegate_http_request_duration_seconds_count") {
				continue
			}
			counts++
			if strings.Contains(line, "oncegate/answer") && !strings.HasSuffix(line, " 0\n") {
				t.Errorf("the manager was asked: %s", line)
			}
		}
		if counts == 0 {
			t.Error("the manager counts no requests")
		}
	})
}

// Neither do they reach them by another spelling of the path, where the manager itself is the upstream and whatever the
// proxy makes of the spelling: with each, the gate sees the path that the routes see.
func TestSpellingsOfTheAnswerPath(t *testing.T) {
	normal := map[string]func(*hcmv3.HttpConnectionManager) error{
		"as sent": nil,
		"normalized": func(hcm *hcmv3.HttpConnectionManager) error {
			hcm.NormalizePath, hcm.MergeSlashes = wrapperspb.Bool(true), true
			hcm.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
			return nil
		},
	}
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		for name, edit := range normal {
			t.Run(name, func(t *testing.T) {
				s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: unary, edit: edit}
				s.stopAtEnd(t)
				s.startManager(t)
				s.paymentsAddr = s.managerAddr // the catch-all route leads to the manager
				s.startProxy(t)
				if blank, err := asksForAnswer(s.managerAddr, "/oncegate/answer"); err != nil || !blank {
					t.Fatalf("the manager itself gives no blank: %v", err)
				}
				for _, path := range []string{
					"/oncegate/answer", "//oncegate/answer", "///oncegate//answer", "/oncegate//answer", "/oncegate%2fanswer", "/oncegate%2Fanswer", "/oncegate%5canswer", "/oncegate\\answer",
					"/%6fncegate/answer", "/oncegate/%61nswer", "/oncegate/answe%72", "/oncegate/./answer", "/a/../oncegate/answer", "/a/%2e%2e/oncegate/answer", "/a%2f..%2foncegate/answer",
					"/oncegate/answer/", "/oncegate/answer%2f", "/oncegate/answer;a", "/oncegate/answer?a", "/oncegate/answer%3fa", "/oncegate/answer%23a", "/oncegate/answer%00", "/%256fncegate/answer",
				} {
					blank, err := asksForAnswer(s.proxies[0].address, path)
					if err != nil {
						t.Fatalf("%s: %v", path, err)
					}
					if blank {
						t.Errorf("%s reaches the blank of recorded answers", path)
					}
				}
			})
		}
	})
}

// asksForAnswer sends a request with a path as it stands, and reports whether its answer is the blank that the gate fills.
func asksForAnswer(address, path string) (blank bool, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return false, err
	}
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: pay.test\r\nContent-Length: 0\r\n\r\n", path); err != nil {
		return false, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return false, err
	}
	return r.Header.Get("Oncegate-Blank") != "" || r.StatusCode < 400, r.Body.Close()
}

// halfRequest sends a request's headers and a part of its body, and reads the answer's headers.
func halfRequest(address, path string) (status int, said string, err error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, "", err
	}
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: pay.test\r\nContent-Length: 100000\r\n\r\n{", path); err != nil {
		return 0, "", err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	return r.StatusCode, r.Header.Get("Idempotency-Status"), r.Body.Close()
}

// A second gate in the same chain lets the first one fetch its recorded answers.
func TestTwoGatesForUnaryCalls(t *testing.T) {
	eachRPC(t, func(t *testing.T, target envoyTarget) {
		u := newRPCServer(t)
		s := &stack{dir: t.TempDir(), target: target, mode: "body", plugin: unary, paymentsAddr: u.address}
		s.bootstrap = func(b *bootstrapv3.Bootstrap) error { return errors.Join(upstreamHTTP2(b), secondGate(b)) }
		s.stopAtEnd(t)
		s.startManager(t)
		s.startProxy(t)
		r := &rpcRig{s, u, grpc_testing.NewTestServiceClient(dialRPC(t, s.proxies[0]))}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		key := newKey()
		first := r.callWith(ctx, key, &grpc_testing.SimpleRequest{ResponseSize: 10_000})
		if first.err != nil {
			t.Fatal(first.err)
		}
		for range 3 {
			if a := r.callWith(ctx, key, &grpc_testing.SimpleRequest{ResponseSize: 10_000}); a.err != nil || a.state() != "replayed" || a.message.GetUsername() != first.message.GetUsername() || !slices.Equal(a.trailer.Get("x-sum"), first.trailer.Get("x-sum")) {
				t.Errorf("retry: %v %v, first %v", a, a.err, first)
			}
		}
		if n := u.ran(key); n != 1 {
			t.Errorf("ran %d times", n)
		}
	})
}

// secondGate puts another gate after the first one. It has its own cache and no ledger.
func secondGate(b *bootstrapv3.Bootstrap) error {
	packed, hcm := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig(), new(hcmv3.HttpConnectionManager)
	if err := packed.UnmarshalTo(hcm); err != nil {
		return err
	}
	at := slices.IndexFunc(hcm.HttpFilters, isGate)
	if at < 0 {
		return fmt.Errorf("no gate in %v", hcm.HttpFilters)
	}
	second := proto.CloneOf(hcm.HttpFilters[at])
	second.Name += "-2"
	wasm, fields := new(wasmfilterv3.Wasm), map[string]any{}
	if err := second.GetTypedConfig().UnmarshalTo(wasm); err != nil {
		return err
	}
	plugin := wasm.GetConfig()
	text, err := envoy.PluginJSON(plugin)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	fields["client_abort"] = "cancel"
	fields["ledger"] = "none"
	if text, err = json.Marshal(fields); err != nil {
		return err
	}
	plugin.Name, plugin.RootId, plugin.GetVmConfig().VmId = plugin.GetName()+"-2", plugin.GetRootId()+"-2", plugin.GetVmConfig().GetVmId()+"-2"
	if err := errors.Join(envoy.SetPluginJSON(plugin, text), second.GetTypedConfig().MarshalFrom(wasm)); err != nil {
		return err
	}
	hcm.HttpFilters = slices.Insert(hcm.HttpFilters, at+1, second)
	return packed.MarshalFrom(hcm)
}
