package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/api"
)

// TestAResultThatIsRefusedHarmsNobodyElse: finishes travel together, and one that the manager cannot take makes it refuse
// the whole request.
func TestAResultThatIsRefusedHarmsNobodyElse(t *testing.T) {
	var paths []string
	manager := roundTripper(func(r *http.Request) (*http.Response, error) {
		paths = append(paths, r.URL.Path)
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(b), "[[[") {
			return response(400, api.ContentTypeProblem, `{"code":"invalid-request","title":"nested too deep"}`), nil
		}
		return response(200, api.ContentTypeJSON, `{"id":"`+strings.Split(r.URL.Path, "/")[3]+`","state":"complete"}`), nil
	})
	c, err := New(Options{URL: "http://x", HTTP: &http.Client{Transport: manager}})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.NewWorker(WorkerOptions{Handlers: nothing})
	if err != nil {
		t.Fatal(err)
	}
	var batch []*finish
	for i := range 3 {
		req := FinishRequest{ID: fmt.Sprint("j", i), LeaseToken: "t", Status: "complete", Result: json.RawMessage("1")}
		if i == 1 {
			req.Result = json.RawMessage("[[[1]]]")
		}
		batch = append(batch, &finish{req: req, done: make(chan error, 1)})
	}
	w.send(t.Context(), batch)
	for i, f := range batch {
		if err := <-f.done; refused(err) != (i == 1) || i != 1 && err != nil {
			t.Errorf("finish %d: %v", i, err)
		}
	}
	if want := []string{"/v1/jobs/finish", "/v1/jobs/j0/finish", "/v1/jobs/j1/finish", "/v1/jobs/j2/finish"}; !slices.Equal(paths, want) {
		t.Errorf("requests to %q", paths)
	}
}

// TestAFinishThatFailsForAWhileIsRepeated: the manager may answer that it has finished some jobs of a request, and that it
// could not write the others at the moment.
func TestAFinishThatFailsForAWhileIsRepeated(t *testing.T) {
	var paths []string
	manager := roundTripper(func(r *http.Request) (*http.Response, error) {
		paths = append(paths, r.URL.Path)
		if r.URL.Path == "/v1/jobs/finish" {
			return response(200, api.ContentTypeJSON, `{"results":[{"id":"j0","state":"complete"},`+
				`{"id":"j1","problem":{"status":503,"code":"overloaded"}},{"id":"j2","problem":{"status":409,"code":"fenced"}},`+
				`{"id":"j3","problem":{"status":503,"code":"store-full"}},{"id":"j4","problem":{"status":503,"code":"insufficient-storage"}}]}`), nil
		}
		return response(200, api.ContentTypeJSON, `{"id":"`+strings.Split(r.URL.Path, "/")[3]+`","state":"complete"}`), nil
	})
	c, err := New(Options{URL: "http://x", HTTP: &http.Client{Transport: manager}})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.NewWorker(WorkerOptions{Handlers: nothing})
	if err != nil {
		t.Fatal(err)
	}
	var batch []*finish
	for i := range 5 {
		req := FinishRequest{ID: fmt.Sprint("j", i), LeaseToken: "t", Status: "complete"}
		batch = append(batch, &finish{req: req, done: make(chan error, 1)})
	}
	w.send(t.Context(), batch)
	for i, f := range batch {
		if err := <-f.done; HasCode(err, api.CodeFenced) != (i == 2) || i != 2 && err != nil {
			t.Errorf("finish %d: %v", i, err)
		}
	}
	if want := []string{"/v1/jobs/finish", "/v1/jobs/j1/finish", "/v1/jobs/j3/finish", "/v1/jobs/j4/finish"}; !slices.Equal(paths, want) {
		t.Errorf("requests to %q", paths)
	}
}
