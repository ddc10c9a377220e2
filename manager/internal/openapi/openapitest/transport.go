package openapitest

import (
	"bytes"
	"io"
	"net/http"
)

// Transport checks what a client of the manager sends and gets.
type Transport struct {
	Next http.RoundTripper
	// Report gets what the description does not say.
	Report func(error)
}

// RoundTrip implements http.RoundTripper. An answer that does not arrive whole is not checked.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	d, err := Load()
	if err != nil {
		return nil, err
	}
	x := &Exchange{Method: r.Method, Path: r.URL.RequestURI(), RequestType: r.Header.Get("content-type")}
	if r.Body != nil {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		_ = r.Body.Close()
		x.Request = string(sent)
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	resp, err := t.Next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(got))
	x.Status, x.Header, x.Answer = resp.StatusCode, resp.Header, string(got)
	if err := d.Check(x); err != nil {
		t.Report(err)
	}
	return resp, nil
}
