package object

import (
	"net/http"
	"net/http/httptest"
	"os"
)

// OpenGCSAt opens a store whose requests, with tokens, go to a handler.
func OpenGCSAt(url string, getenv func(string) string, handle http.HandlerFunc, cleanup func(func())) (Store, error) {
	s, err := Open(url, getenv)
	if err != nil {
		return nil, err
	}
	srv := httptest.NewServer(handle)
	cleanup(srv.Close)
	s.(*remote).service.(*gcsStore).base = srv.URL
	return s, nil
}

// FailSync makes the next sync of a directory fail, and no other one.
func FailSync(s Store, err error) {
	d := s.(*dirStore)
	d.sync = func(*os.File) error {
		d.sync = (*os.File).Sync
		return err
	}
}
