package object_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/object"
)

// emulated is a client whose server is a handler of the test.
func emulated(t *testing.T, handle http.HandlerFunc) object.Store {
	srv := httptest.NewServer(handle)
	t.Cleanup(srv.Close)
	s, err := object.Open("gs://bucket/pre", env("STORAGE_EMULATOR_HOST", srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func env(nameValues ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(nameValues); i += 2 {
			if nameValues[i] == name {
				return nameValues[i+1]
			}
		}
		return ""
	}
}

// The request has what Google asks for.
func TestGCSWriteRequest(t *testing.T) {
	t.Parallel()
	var conditions []string
	s := emulated(t, func(w http.ResponseWriter, r *http.Request) {
		_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/upload/storage/v1/b/bucket/o" || r.URL.Query().Get("uploadType") != "multipart" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		conditions = append(conditions, r.URL.Query().Get("ifGenerationMatch"))
		parts := multipart.NewReader(r.Body, params["boundary"])
		var bodies []string
		for {
			p, err := parts.NextPart()
			if errors.Is(err, io.EOF) {
				break
			}
			b, err2 := io.ReadAll(p)
			if err != nil || err2 != nil {
				t.Error(err, err2)
				break
			}
			bodies = append(bodies, string(b))
		}
		var about struct{ Name, Crc32c string }
		// The checksum of RFC 3720's example for "123456789" is e3069283.
		if len(bodies) != 2 || json.Unmarshal([]byte(bodies[0]), &about) != nil || about.Name != "pre/a/b" || about.Crc32c != "4waSgw==" || bodies[1] != "123456789" {
			t.Errorf("parts %q", bodies)
		}
		fmt.Fprint(w, `{"generation":"1700000000000001"}`)
	})
	v, err := s.Create(t.Context(), "a/b", []byte("123456789"))
	if err != nil || v != "1700000000000001" {
		t.Fatalf("%q, %v", v, err)
	}
	for _, old := range []object.Version{v, "0", "00000000000000000000000000000000", "-5", "etag", ""} { // none of these may create
		if _, err := s.Replace(t.Context(), "a/b", []byte("123456789"), old); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(conditions, " "); got != "0 1700000000000001 1 1 1 1 1" {
		t.Errorf("conditions %s", got)
	}
}

// A write whose answer is lost has an unknown outcome. It is not sent again: the answer to that would be a conflict with itself.
func TestGCSLostAnswerIsNoConflict(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	s := emulated(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch n.Add(1) {
		case 1: // so that the next request has a connection that was used before
			fmt.Fprint(w, `{"generation":"7"}`)
		case 2:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusPreconditionFailed)
		}
	})
	if _, err := s.Create(t.Context(), "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "b", []byte("x")); err == nil || errors.Is(err, object.ErrExists) {
		t.Errorf("a lost answer: %v", err)
	}
	if n.Load() != 2 {
		t.Errorf("%d requests", n.Load())
	}
	if _, err := s.Create(t.Context(), "b", []byte("x")); !errors.Is(err, object.ErrExists) {
		t.Errorf("412: %v", err)
	}
}

func TestGCSAnswers(t *testing.T) {
	t.Parallel()
	const sum = "crc32c=4waSgw==,md5=x"
	for name, c := range map[string]struct {
		status           int
		generation, hash string
		body             string
		want             error // nil: none of those below
		text             string
	}{
		"wrong sum":      {200, "5", "crc32c=AAAAAA==", "123456789", nil, "CRC-32C"},
		"no sum":         {200, "5", "", "123456789", nil, "CRC-32C"},
		"no generation":  {200, "", sum, "123456789", nil, "generation"},
		"missing":        {404, "", "", "No such object: bucket/pre/a", object.ErrNotFound, ""},
		"missing bucket": {404, "", "", `{"error":{"code":404,"message":"The specified bucket does not exist."}}`, nil, "404 Not Found: The specified bucket"},
		"refused":        {403, "", "", `{"error":{"code":403,"message":"no\npermission"}}`, nil, "403 Forbidden: no permission"},
		"busy":           {503, "", "", "", nil, "503 Service Unavailable"},
		"moved":          {302, "", "", "", nil, "302 Found"},
		"slow down":      {429, "", "", "x", nil, "429 Too Many Requests: x"},
	} {
		s := emulated(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Goog-Generation", c.generation)
			w.Header().Set("X-Goog-Hash", c.hash)
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		_, _, err := s.Get(t.Context(), "a")
		known := errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrTooLarge)
		if c.want != nil && !errors.Is(err, c.want) || c.want == nil && (err == nil || known || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %v", name, err)
		}
		if c.status == 200 {
			continue
		}
		if err := s.Delete(t.Context(), "a"); (err == nil) != (c.want == object.ErrNotFound) {
			t.Errorf("%s: delete: %v", name, err)
		}
		if _, err := s.Create(t.Context(), "a", []byte("x")); err == nil || errors.Is(err, object.ErrExists) {
			t.Errorf("%s: create: %v", name, err)
		}
		if _, err := s.List(t.Context(), "", ""); err == nil {
			t.Errorf("%s: list", name)
		}
	}
	if _, err := emulated(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{}`) }).Create(t.Context(), "a", []byte("x")); err == nil {
		t.Error("a write without a generation has no version")
	}
}

// The server answers before it has read the body, and the caller uses the body's memory again. The race detector looks on.
func TestGCSEarlyAnswerGivesTheBodyBack(t *testing.T) {
	t.Parallel()
	s := emulated(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusPreconditionFailed) })
	body := make([]byte, 8<<20)
	for range 20 {
		if _, err := s.Create(t.Context(), "a", body); err == nil {
			t.Fatal("no error")
		}
		clear(body)
	}
}

func TestGCSListSkipsEmptyPages(t *testing.T) {
	t.Parallel()
	s := emulated(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("pageToken") {
		case "":
			fmt.Fprint(w, `{"nextPageToken":"two"}`)
		case "two":
			fmt.Fprint(w, `{"nextPageToken":"three","items":[{"name":"pre/a","size":"3"}]}`) // the one asked for with startOffset
		default:
			fmt.Fprint(w, `{"items":[{"name":"pre/b","size":"3","updated":"2026-01-02T03:04:05.678Z"}]}`)
		}
	})
	infos, err := s.List(t.Context(), "", "a")
	if err != nil || len(infos) != 1 || infos[0].Name != "b" || infos[0].Bytes != 3 || infos[0].Modified.Year() != 2026 {
		t.Errorf("%+v, %v", infos, err)
	}
}

// The token of the metadata server is asked for once, and goes with each request.
func TestGCSTokenOfTheMachine(t *testing.T) {
	var tokens atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/computeMetadata/v1/instance/service-accounts/default/token" || r.Header.Get("Metadata-Flavor") != "Google" {
			t.Errorf("asked for %s", r.URL)
		}
		tokens.Add(1)
		w.Header().Set("Metadata-Flavor", "Google")
		fmt.Fprint(w, `{"access_token":"hidden","expires_in":3600,"token_type":"Bearer"}`)
	}))
	t.Cleanup(srv.Close)
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(srv.URL, "http://"))
	s, err := object.OpenGCSAt("gs://bucket/pre", env("HOME", t.TempDir()), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer hidden" {
			t.Errorf("Authorization: %q", r.Header.Get("Authorization"))
		}
		fmt.Fprint(w, `{"generation":"7"}`)
	}, t.Cleanup)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if _, err := s.Create(t.Context(), name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if tokens.Load() != 1 {
		t.Errorf("%d tokens", tokens.Load())
	}
}

// What a server of tokens answers goes to logs: no page of it, and nothing that it repeats of the request.
func TestGCSTokenRefused(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"error":"invalid_grant","error_description":"the account is\ngone"}`:                    "invalid_grant",
		`{"error":"invalid_grant","error_description":"` + strings.Repeat("long ", 10_000) + `"}`: "invalid_grant",
		"<html>" + strings.Repeat("a page\n", 10_000):                                             "502 Bad Gateway",
		"your request was: REQUEST":                                                               "502 Bad Gateway",
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "REQUEST", "assertion="+r.FormValue("assertion")))
		}))
		t.Cleanup(srv.Close)
		s, err := object.Open("gs://bucket/pre", env("GOOGLE_APPLICATION_CREDENTIALS", serviceAccount(t, srv.URL)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Create(t.Context(), "a", []byte("x"))
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "assertion") {
			t.Errorf("%.50s: %.300v", body, err)
		}
	}
}

// serviceAccount is a file with the key of a service account whose tokens come from a server.
func serviceAccount(t *testing.T, tokens string) string {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b", "token_uri": tokens,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestGCSCredentialFiles(t *testing.T) {
	t.Parallel()
	write := func(dir, text string) string {
		file := filepath.Join(dir, "application_default_credentials.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const user = `{"type":"authorized_user","client_id":"a","client_secret":"secret","refresh_token":"secret"}`
	if _, err := object.Open("gs://b/p", env("GOOGLE_APPLICATION_CREDENTIALS", write(t.TempDir(), user))); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		`secret`:                 "is not a JSON document",
		`{"type":"secret"}`:      "known type",
		`{"type":"gdch"}`:        "known type",
		`{"installed":"secret"}`: "known type",
		`{"type":"external_account","secret":"x"}`: "no usable credentials of type external_account",
	} {
		_, err := object.Open("gs://b/p", env("GOOGLE_APPLICATION_CREDENTIALS", write(t.TempDir(), text)))
		var u *object.URLError
		if !errors.As(err, &u) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "GOOGLE_APPLICATION_CREDENTIALS") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := object.Open("gs://b/p", env("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a file that is missing: %v", err)
	}
	home := t.TempDir()
	dir := filepath.Join(home, ".config", "gcloud")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(dir, "secret")
	if _, err := object.Open("gs://b/p", env("HOME", home)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a damaged file of gcloud: %v", err)
	}
	for _, host := range []string{"http://user:secret@host", "ftp://secret", "http://host/secret", "host?secret", "http://"} {
		if _, err := object.Open("gs://b/p", env("STORAGE_EMULATOR_HOST", host)); err == nil || strings.Contains(host, "@") && strings.Contains(err.Error(), "secret") {
			t.Errorf("emulator %q: %v", host, err)
		}
	}
}

// Open never panics, and what it opens has the URL that opens the same.
func FuzzOpen(f *testing.F) {
	for _, u := range []string{"s3://b/p", "gs://b/p/q/", "gs://b:80/p", "gs://b%2Fc/p", "file:///a/../b", "file:///a%3Fb", "file:/%00/c", "azblob://ctr/p", "az://ctr", "gs://user:secret@b", "gs://[::1]/x", "s3://b//x", "://"} {
		f.Add(u)
	}
	getenv := env("STORAGE_EMULATOR_HOST", "localhost:1", "AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "a2V5")
	f.Fuzz(func(t *testing.T, raw string) {
		s, err := object.Open(raw, getenv)
		if err != nil {
			var u *object.URLError
			if !errors.As(err, &u) {
				t.Errorf("%q: %T", raw, err)
			}
			return
		}
		again, err := object.Open(s.String(), getenv)
		if err != nil || again.String() != s.String() {
			t.Errorf("%q is %q, which is %v, %v", raw, s, again, err)
		}
	})
}
