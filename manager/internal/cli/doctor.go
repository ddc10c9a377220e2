package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/doctor"
	"github.com/oncegate/oncegate/manager/internal/settings"
)

// doctorMain looks at a deployment from where it runs. It ends with 1 if a check failed.
func doctorMain(ctx context.Context, env Environment, args []string) error {
	target, asJSON, err := parseDoctor(env, args)
	if err != nil {
		return err
	}
	findings := doctor.Run(ctx, target)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	failed := 0
	for _, f := range findings {
		if f.Level == doctor.Fail {
			failed++
		}
		if asJSON {
			err = json.NewEncoder(env.Stdout).Encode(f)
		} else {
			_, err = fmt.Fprintf(env.Stdout, "%-4s  %s: %s\n", f.Level, f.Check, f.Found)
			if err == nil && f.Do != "" {
				_, err = fmt.Fprintf(env.Stdout, "      -> %s\n", f.Do)
			}
		}
		if err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return nil
}

func parseDoctor(env Environment, args []string) (doctor.Target, bool, error) {
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	fromEnv, _ := env.Getenv(managerURLEnv)
	manager, metrics, envoy, tokenFile := cmp.Or(fromEnv, defaultManagerURL), "", "", ""
	sample, timeout, asJSON := 2*time.Second, 10*time.Second, false
	fs.StringVar(&manager, "manager", manager, "`URL` of the manager's API, or unix:PATH ["+managerURLEnv+"]")
	fs.StringVar(&metrics, "metrics", "", "`URL` of the manager's --admin listener, or unix:PATH, to look at its metrics")
	fs.StringVar(&envoy, "envoy", "", "`URL` of Envoy's admin listener, to look at the gate and what is around it")
	fs.StringVar(&tokenFile, "token-file", "", "`file` that begins with a bearer token of an operator")
	var certificates clientTLS
	certificates.flags(fs)
	fs.Func("sample-seconds", "how long the rate of new keys is measured, 0.1 to 3600 (default 2)", settings.Seconds(0.1, 3600, &sample))
	fs.Func("timeout-seconds", "what one call may take, 0.1 to 600 (default 10)", settings.Seconds(0.1, 600, &timeout))
	probe := doctor.Probe{Header: http.Header{}}
	fs.StringVar(&probe.URL, "probe", "", "`URL` that the gate protects, to send a POST there, twice under one new key: its work runs once")
	fs.Func("probe-header", "`NAME:VALUE` that this request needs, such as the caller's authorization; may be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if !ok || name == "" {
			return errors.New("must be NAME:VALUE")
		}
		probe.Header.Add(name, strings.TrimSpace(value))
		return nil
	})
	fs.BoolVar(&asJSON, "json", false, "print JSON, one finding per line")
	var target doctor.Target
	if err := parseOnlyFlags(fs, args, func() {
		fmt.Fprintln(env.Stdout, "usage: oncegate doctor [flags]")
		fs.SetOutput(env.Stdout)
		fs.PrintDefaults()
	}); err != nil {
		return target, false, err
	}
	behind := sockets{}
	for _, u := range []struct {
		name    string
		value   *string
		manager bool
	}{{"manager", &manager, true}, {"metrics", &metrics, true}, {"envoy", &envoy, false}, {"probe", &probe.URL, false}} {
		if *u.value == "" && u.name != "manager" {
			continue
		}
		if path, ok := settings.SocketPath(*u.value); ok && path != "" && u.manager {
			*u.value = behind.url(u.name, path)
			continue
		}
		if parsed, err := url.Parse(*u.value); err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			orSocket := ""
			if u.manager {
				orSocket = ", or unix:PATH"
			}
			return target, false, settings.Usagef("--%s %q: must be http:// or https:// with a host%s", u.name, *u.value, orSocket)
		}
	}
	token, err := readToken(tokenFile)
	if err != nil {
		return target, false, err
	}
	client, err := certificates.client()
	if err != nil {
		return target, false, err
	}
	if client == nil {
		client = &http.Client{}
	}
	behind.serve(client)
	client.Timeout = timeout
	trim := func(s string) string { return strings.TrimRight(s, "/") }
	return doctor.Target{Manager: trim(manager), Token: token, Metrics: trim(metrics), Envoy: trim(envoy), Explain: env.ExplainGate, Client: client, Sample: sample, Probe: probe}, asJSON, nil
}

// sockets are the paths of Unix sockets, by the address that stands for each in a URL.
type sockets map[string]string

// url returns a URL that stands for a socket.
func (s sockets) url(name, path string) string {
	host := name + "-socket.invalid" // no resolver knows such a name
	s[host+":80"] = path
	return "http://" + host
}

// serve makes a client connect to the sockets.
func (s sockets) serve(client *http.Client) {
	if len(s) == 0 {
		return
	}
	transport, ok := client.Transport.(*http.Transport)
	if !ok {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	var dialer net.Dialer
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if path, ok := s[address]; ok {
			network, address = "unix", path
		}
		return dialer.DialContext(ctx, network, address)
	}
	transport.Proxy = func(r *http.Request) (*url.URL, error) {
		if _, ok := s[r.URL.Host+":80"]; ok {
			return nil, nil
		}
		return http.ProxyFromEnvironment(r)
	}
	client.Transport = transport
}
