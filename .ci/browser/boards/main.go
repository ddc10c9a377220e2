// Command boards draws the pictures of docs/operating.md: it puts load on the gate in Envoy and on a manager (build/examples/run),
// lets a Prometheus scrape both, and has Grafana's own components draw the boards of charts/oncegate/files/grafana in Chromium.
// There is no Grafana server in it.
//
// make docs-pictures runs it. It needs build/grafana (the components and a bundler), prometheus and chromium.
package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// The stack is under load for loadTime, in which Prometheus scrapes it every scrapeEvery.
const (
	loadTime     = 4 * time.Minute
	scrapeEvery  = 2 * time.Second
	rateInterval = 20 * time.Second
	patience     = time.Minute
	width        = 1400
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := draw(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "boards:", err)
		os.Exit(1)
	}
}

func draw(ctx context.Context) error {
	top, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "boards")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := startStack(ctx, top, dir)
	if err != nil {
		return err
	}
	defer s.stop()
	began := time.Now()
	if err := s.load(ctx, loadTime); err != nil {
		return err
	}
	ended := time.Now()
	bundle := filepath.Join(dir, "draw.js")
	build := exec.CommandContext(ctx, filepath.Join(top, "build", "grafana", "node_modules", ".bin", "esbuild"), filepath.Join(top, ".ci", "browser", "boards", "draw.jsx"),
		"--bundle", "--outfile="+bundle, "--jsx=automatic", "--loader:.svg=dataurl", "--loader:.woff2=dataurl", "--loader:.ttf=dataurl", `--define:process.env.NODE_ENV="production"`, "--log-level=warning")
	build.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(top, "build", "grafana", "node_modules"))
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("esbuild: %w: %s", err, out)
	}
	prometheus, err := url.Parse(s.prometheus)
	if err != nil {
		return err
	}
	boards := filepath.Join(top, "charts", "oncegate", "files", "grafana")
	mux := http.NewServeMux()
	mux.Handle("/prometheus/", http.StripPrefix("/prometheus", httputil.NewSingleHostReverseProxy(prometheus)))
	mux.Handle("/boards/", http.StripPrefix("/boards/", http.FileServer(http.Dir(boards))))
	mux.HandleFunc("/draw.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, bundle) })
	mux.HandleFunc("/draw.css", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, filepath.Join(dir, "draw.css")) })
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`<!doctype html><title>board</title><link rel="stylesheet" href="draw.css"><body><script src="draw.js"></script>`))
	})
	site := httptest.NewServer(mux)
	defer site.Close()
	files, err := filepath.Glob(filepath.Join(boards, "*.json"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no boards in %s: %v", boards, err)
	}
	alloc, cancel := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.ExecPath("chromium"), chromedp.WSURLReadTimeout(patience))...)
	defer cancel()
	tab, cancelTab := chromedp.NewContext(alloc)
	defer cancelTab()
	for _, file := range files {
		q := url.Values{"board": {filepath.Base(file)}, "from": {fmt.Sprint(began.Add(rateInterval).Unix())}, "to": {fmt.Sprint(ended.Unix())},
			"step": {fmt.Sprint(scrapeEvery.Seconds())}, "rate": {rateInterval.String()}}
		picture := filepath.Join(top, "docs", strings.Replace(strings.TrimSuffix(filepath.Base(file), ".json"), "oncegate-", "board-", 1)+".png")
		if err := shoot(tab, site.URL+"/?"+q.Encode(), picture); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		fmt.Println(picture)
	}
	return nil
}

// shoot takes a picture of a board once each of its panels is drawn, or says that it has no data.
func shoot(tab context.Context, address, file string) error {
	const drawn = `window.failed || (window.panels && document.querySelectorAll("canvas, .empty").length >= window.panels && "drawn") || ""`
	if err := chromedp.Run(tab, chromedp.EmulateViewport(width, 900), chromedp.Navigate(address)); err != nil {
		return err
	}
	said := ""
	for end := time.Now().Add(patience); said == ""; {
		if time.Now().After(end) {
			return fmt.Errorf("not drawn within %v", patience)
		}
		if err := chromedp.Run(tab, chromedp.Sleep(200*time.Millisecond), chromedp.Evaluate(drawn, &said)); err != nil {
			return err
		}
	}
	if said != "drawn" {
		return fmt.Errorf("%s", said)
	}
	var empty int
	var picture []byte
	if err := chromedp.Run(tab, chromedp.Sleep(time.Second), chromedp.Evaluate(`document.querySelectorAll(".empty").length`, &empty),
		chromedp.ActionFunc(func(ctx context.Context) (err error) {
			picture, err = page.CaptureScreenshot().WithCaptureBeyondViewport(true).WithOptimizeForSpeed(false).Do(ctx)
			return err
		})); err != nil {
		return err
	}
	fmt.Println(empty, "panels without data")
	return os.WriteFile(file, picture, 0o644)
}
