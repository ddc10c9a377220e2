package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/valyala/fasthttp"
)

// serveEcho is the bound that the HTTP engine itself sets: it reads a request
// and answers as many bytes as a reserve's answer has, without a ledger.
func serveEcho(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("peers echo", flag.ContinueOnError)
	engine := fs.String("engine", "fasthttp", "fasthttp or nethttp")
	if err := fs.Parse(args); err != nil {
		return usageError(err.Error())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	line, err := json.Marshal(map[string]string{"msg": "listening", "listener": "api", "addr": l.Addr().String()})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, string(line))
	answer := make([]byte, 16)
	errs := make(chan error, 1)
	switch *engine {
	case "fasthttp":
		srv := &fasthttp.Server{NoDefaultServerHeader: true, NoDefaultDate: true, Handler: func(c *fasthttp.RequestCtx) {
			_ = c.PostBody()
			c.SetStatusCode(fasthttp.StatusCreated)
			c.SetContentType("application/vnd.oncegate.v1")
			c.Response.Header.Set("oncegate-manager", "echo")
			c.SetBody(answer)
		}}
		go func() { errs <- srv.Serve(l) }()
	case "nethttp":
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var buf [4096]byte
			for {
				if _, err := r.Body.Read(buf[:]); err != nil {
					break
				}
			}
			w.Header().Set("Content-Type", "application/vnd.oncegate.v1")
			w.Header().Set("Oncegate-Manager", "echo")
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(answer)
		})}
		go func() { errs <- srv.Serve(l) }()
	default:
		return usageError(fmt.Sprintf("-engine %q: must be fasthttp or nethttp", *engine))
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		return err
	}
}
