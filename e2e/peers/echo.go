package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
)

// serveEcho is the bound that net/http itself sets: it reads a request
// and answers as many bytes as a reserve's answer has, without a ledger.
func serveEcho(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("peers echo", flag.ContinueOnError)
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
	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		return err
	}
}
