package object_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
)

// azure is a client whose server is a handler of the test.
func azure(t *testing.T, handle http.HandlerFunc, more ...string) object.Store {
	t.Helper()
	srv := httptest.NewServer(handle)
	t.Cleanup(srv.Close)
	s, err := object.Open("azblob://container/pre", env(append(more, "AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_SERVICE_ENDPOINT", srv.URL+"/acc")...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const azureTestKey = "AZURE_STORAGE_KEY"

// The request has what Azure asks for.
func TestAzureWriteRequest(t *testing.T) {
	t.Parallel()
	var conditions []string
	s := azure(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		// The checksum of the CRC catalogue's example for "123456789" is ae8b14860a799888.
		if err != nil || string(b) != "123456789" || r.ContentLength != 9 || r.Method != http.MethodPut || r.URL.Path != "/acc/container/pre/a/b" ||
			r.Header.Get("X-Ms-Content-Crc64") != "iJh5CoYUi64=" || r.Header.Get("X-Ms-Blob-Type") != "BlockBlob" || r.Header.Get("X-Ms-Version") == "" ||
			!strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey acc:") {
			t.Errorf("%s %s %q %v: %v", r.Method, r.URL, b, r.Header, err)
		}
		conditions = append(conditions, r.Header.Get("If-Match")+r.Header.Get("If-None-Match"))
		w.Header().Set("Etag", `"0x8D1"`)
		w.WriteHeader(http.StatusCreated)
	}, azureTestKey, "a2V5")
	v, err := s.Create(t.Context(), "a/b", []byte("123456789"))
	if err != nil || v != `"0x8D1"` {
		t.Fatalf("%q, %v", v, err)
	}
	for _, old := range []object.Version{v, "", "*", `"*"`, "etag", `"a","b"`} { // only the first may replace anything
		if _, err := s.Replace(t.Context(), "a/b", []byte("123456789"), old); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(conditions, " "); got != `* "0x8D1" "0x0" "0x0" "0x0" "0x0" "0x0"` {
		t.Errorf("conditions %s", got)
	}
}

// A write whose answer is lost has an unknown outcome. It is not sent again: the answer to that would be a conflict with itself.
func TestAzureLostAnswerIsNoConflict(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	s := azure(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch n.Add(1) {
		case 1: // so that the next request has a connection that was used before
			w.Header().Set("Etag", `"1"`)
		case 2:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, "<Error><Code>BlobAlreadyExists</Code></Error>")
		}
	}, azureTestKey, "a2V5")
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
		t.Errorf("409: %v", err)
	}
}

func TestAzureAnswers(t *testing.T) {
	t.Parallel()
	const sum = "JfnnlDI7RTiF9RgfGwK6jQ==" // of 123456789
	for name, c := range map[string]struct {
		status          int
		etag, sum, code string
		body            string
		get, put        error // nil: none of the store's own
		text            string
	}{
		"wrong sum":         {200, `"1"`, "JfnnlDI7RTiF9RgfGwK6jA==", "", "123456789", nil, nil, "MD5"},
		"no ETag":           {200, "", sum, "", "123456789", nil, nil, "ETag"},
		"missing":           {404, "", "", "BlobNotFound", "", object.ErrNotFound, object.ErrChanged, ""},
		"missing, by body":  {404, "", "", "", "\ufeff<Error><Code>BlobNotFound</Code></Error>", object.ErrNotFound, object.ErrChanged, ""},
		"missing container": {404, "", "", "ContainerNotFound", "<Error><Message>No such container.\nRequestId:1</Message></Error>", nil, nil, "404 Not Found: ContainerNotFound: No such container."},
		"condition":         {412, "", "", "ConditionNotMet", "", nil, object.ErrChanged, "412 Precondition Failed"},
		"leased":            {412, "", "", "LeaseIdMissing", "", nil, nil, "LeaseIdMissing"},
		"immutable":         {409, "", "", "BlobImmutableDueToPolicy", "", nil, nil, "409 Conflict: BlobImmutableDueToPolicy"},
		"refused":           {403, "", "", "AuthorizationPermissionMismatch", "", nil, nil, "403 Forbidden: AuthorizationPermissionMismatch"},
		"long":              {403, "", "", "AuthenticationFailed", "<Error><Message>Not signed.\nRequestId:1</Message><AuthenticationErrorDetail>" + strings.Repeat("x", 2000) + "</AuthenticationErrorDetail></Error>", nil, nil, "403 Forbidden: AuthenticationFailed: Not signed."},
		"busy":              {503, "", "", "ServerBusy", "", nil, nil, "503 Service Unavailable: ServerBusy"},
		"moved":             {307, "", "", "", "", nil, nil, "307 Temporary Redirect"},
	} {
		s := azure(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Etag", c.etag)
			w.Header().Set("Content-Md5", c.sum)
			w.Header().Set("X-Ms-Error-Code", c.code)
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		}, azureTestKey, "a2V5")
		check := func(what string, err, want error) {
			known := errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrChanged) || errors.Is(err, object.ErrExists)
			if want != nil && !errors.Is(err, want) || want == nil && (err == nil || known || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
		_, _, err := s.Get(t.Context(), "a")
		check("get", err, c.get)
		if c.status == 200 {
			continue
		}
		_, err = s.Replace(t.Context(), "a", []byte("x"), `"1"`)
		check("replace", err, c.put)
		if err := s.Delete(t.Context(), "a"); (err == nil) != (c.get == object.ErrNotFound) {
			t.Errorf("%s: delete: %v", name, err)
		}
		if _, err := s.Create(t.Context(), "a", []byte("x")); err == nil || errors.Is(err, object.ErrExists) != (c.code == "ConditionNotMet") {
			t.Errorf("%s: create: %v", name, err)
		}
		if _, err := s.List(t.Context(), "", ""); err == nil {
			t.Errorf("%s: list", name)
		}
	}
	s := azure(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) }, azureTestKey, "a2V5")
	if _, err := s.Create(t.Context(), "a", []byte("x")); err == nil {
		t.Error("a write without an ETag has no version")
	}
}

// The server answers before it has read the body, and the caller uses the body's memory again. The race detector looks on.
func TestAzureEarlyAnswerGivesTheBodyBack(t *testing.T) {
	t.Parallel()
	s := azure(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusPreconditionFailed) }, azureTestKey, "a2V5")
	body := make([]byte, 8<<20)
	for range 20 {
		if _, err := s.Create(t.Context(), "a", body); err == nil {
			t.Fatal("no error")
		}
		clear(body)
	}
}

// A listing continues where the last one ended, and the last page is read once more.
func TestAzureListGoesOn(t *testing.T) {
	t.Parallel()
	var markers []string
	s := azure(t, func(w http.ResponseWriter, r *http.Request) {
		m := r.URL.Query().Get("marker")
		markers = append(markers, m)
		blob := func(names ...string) (s string) {
			for _, n := range names {
				s += "<Blob><Name>pre/" + n + "</Name><Properties><Content-Length>3</Content-Length><Last-Modified>Fri, 02 Jan 2026 03:04:05 GMT</Last-Modified></Properties></Blob>"
			}
			return s
		}
		page := map[string]string{
			"":   blob("a", "b") + `</Blobs><NextMarker>m1</NextMarker>`,
			"m1": `</Blobs><NextMarker>m2</NextMarker>`, // empty pages are possible
			"m2": blob("c") + "<Blob><Name>pre/dir</Name><Properties><Content-Length>0</Content-Length></Properties></Blob></Blobs><NextMarker />",
		}[m]
		fmt.Fprintf(w, "\ufeff<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>%s</EnumerationResults>", page)
	}, azureTestKey, "a2V5")
	var got []string
	if err := object.All(t.Context(), s, "", func(o object.Info) error {
		got = append(got, o.Name)
		if o.Bytes != 3 || o.Modified.Year() != 2026 {
			t.Errorf("%+v", o)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if strings.Join(got, " ") != "a b c" || strings.Join(markers, " ") != " m1 m2 m2" {
		t.Errorf("listed %v with the markers %q", got, markers)
	}
	markers = nil
	if infos, err := s.List(t.Context(), "", "a"); err != nil || len(infos) != 1 || infos[0].Name != "b" {
		t.Errorf("from the middle of a page: %v, %v", infos, err)
	}
}

// An account with a hierarchical namespace lists a/b before a-b. The rest of such a listing would be missing.
func TestAzureListOutOfOrderIsAnError(t *testing.T) {
	t.Parallel()
	s := azure(t, func(w http.ResponseWriter, r *http.Request) {
		blob := func(name string) string {
			return "<Blob><Name>pre/" + name + "</Name><Properties><Content-Length>3</Content-Length></Properties></Blob>"
		}
		if r.URL.Query().Get("marker") == "" {
			fmt.Fprint(w, "<EnumerationResults><Blobs>"+blob("a/b")+"</Blobs><NextMarker>more</NextMarker></EnumerationResults>")
			return
		}
		fmt.Fprint(w, "<EnumerationResults><Blobs>"+blob("a-b")+"</Blobs></EnumerationResults>")
	}, azureTestKey, "a2V5")
	if err := object.All(t.Context(), s, "", func(object.Info) error { return nil }); err == nil || !strings.Contains(err.Error(), "hierarchical namespace") {
		t.Errorf("%v", err)
	}
}

// A shared access signature goes with each request, and into no error.
func TestAzureSharedAccessSignature(t *testing.T) {
	t.Parallel()
	for _, signature := range []string{"?sv=2023-11-03&sig=hidden%2Bsig%3D&sp=rwdl", "sv=2023-11-03&sig=hidden%2Bsig%3D&sp=rwdl"} {
		s := azure(t, func(w http.ResponseWriter, r *http.Request) {
			if q := r.URL.Query(); q.Get("sig") != "hidden+sig=" || q.Get("sv") != "2023-11-03" || r.Header.Get("Authorization") != "" {
				t.Errorf("%s %v", r.URL, r.Header)
			}
			if r.URL.Query().Get("comp") == "list" {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Etag", `"1"`)
		}, "AZURE_STORAGE_SAS_TOKEN", signature)
		if _, err := s.Create(t.Context(), "a", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.List(t.Context(), "", ""); err == nil || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%v", err)
		}
		if strings.Contains(s.String(), "hidden") {
			t.Error(s.String())
		}
	}
}

// The token of an identity is asked for once, and goes with each request.
func TestAzureIdentities(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env  []string
		want url.Values
	}{
		"workload": {[]string{"AZURE_CLIENT_ID", "app", "AZURE_TENANT_ID", "ten", "AZURE_FEDERATED_TOKEN_FILE", file}, url.Values{
			"grant_type": {"client_credentials"}, "client_id": {"app"}, "scope": {"https://storage.azure.com/.default"},
			"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}, "client_assertion": {"of-the-pod"},
		}},
		"secret": {[]string{"AZURE_CLIENT_ID", "app", "AZURE_TENANT_ID", "ten", "AZURE_CLIENT_SECRET", "hush"}, url.Values{
			"grant_type": {"client_credentials"}, "client_id": {"app"}, "scope": {"https://storage.azure.com/.default"}, "client_secret": {"hush"},
		}},
		"machine": {nil, url.Values{"api-version": {"2018-02-01"}, "resource": {"https://storage.azure.com/"}}},
		"user-assigned": {[]string{"AZURE_CLIENT_ID", "app"}, url.Values{
			"api-version": {"2018-02-01"}, "resource": {"https://storage.azure.com/"}, "client_id": {"app"},
		}},
	} {
		var asked atomic.Int32
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			_ = r.ParseForm()
			machine := r.URL.Path == "/metadata/identity/oauth2/token" && r.Header.Get("Metadata") == "true"
			if r.Form.Encode() != c.want.Encode() || !machine && r.URL.Path != "/ten/oauth2/v2.0/token" {
				t.Errorf("%s: %s %v", name, r.URL, r.Form)
			}
			w.Header().Set("Content-Type", "application/json")
			if machine {
				fmt.Fprint(w, `{"access_token":"hidden","expires_in":"3600","token_type":"Bearer"}`)
			} else {
				fmt.Fprint(w, `{"access_token":"hidden","expires_in":3600,"token_type":"Bearer"}`)
			}
		}))
		t.Cleanup(tokens.Close)
		s := azure(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer hidden" || r.Header.Get("X-Ms-Version") == "" {
				t.Errorf("%s: %v", name, r.Header)
			}
			w.Header().Set("Etag", `"1"`)
		}, append(c.env, "AZURE_AUTHORITY_HOST", tokens.URL+"/", "AZURE_POD_IDENTITY_AUTHORITY_HOST", tokens.URL)...)
		for _, o := range []string{"a", "b"} {
			if _, err := s.Create(t.Context(), o, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("%s: %d tokens", name, asked.Load())
		}
	}
}

func TestAzureTokenRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, identity := range [][]string{nil, {"AZURE_CLIENT_ID", "app", "AZURE_TENANT_ID", "ten", "AZURE_FEDERATED_TOKEN_FILE", file}} {
		for body, want := range map[string]string{
			`{"error":"invalid_request","error_description":"Identity\nnot found"}`:                    "invalid_request Identity not found",
			`{"error":"invalid_client","error_description":"` + strings.Repeat("long ", 10_000) + `"}`: "invalid_client",
			"<html>" + strings.Repeat("a page\n", 10_000):                                              "400 Bad Request",
			"your request was: REQUEST":                                                                "400 Bad Request",
		} {
			tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, strings.ReplaceAll(body, "REQUEST", r.FormValue("client_assertion")))
			}))
			t.Cleanup(tokens.Close)
			s := azure(t, func(w http.ResponseWriter, r *http.Request) { t.Error("a request without a token") },
				append(identity, "AZURE_AUTHORITY_HOST", tokens.URL, "AZURE_POD_IDENTITY_AUTHORITY_HOST", tokens.URL)...)
			_, err := s.Create(t.Context(), "a", []byte("x"))
			if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 2000 || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), "of-the-pod") {
				t.Errorf("%.50s: %.300v", body, err)
			}
		}
	}
}

func TestAzureEnvironment(t *testing.T) {
	t.Parallel()
	fake := objecttest.NewAzure(t)
	endpoint := fake.Getenv("AZURE_STORAGE_SERVICE_ENDPOINT")
	key := fake.Getenv("AZURE_STORAGE_KEY")
	for i, good := range [][]string{
		{"AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=http;AccountName=tests;AccountKey=" + key + ";BlobEndpoint=" + endpoint + "/;QueueEndpoint=x;"},
		// A string comes first.
		{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=tests;AccountKey=" + key + ";BlobEndpoint=" + endpoint, "AZURE_STORAGE_ACCOUNT", "other", "AZURE_STORAGE_KEY", "b3RoZXI="},
		// A key comes before a signature and an identity.
		{"AZURE_STORAGE_ACCOUNT", "tests", "AZURE_STORAGE_KEY", key + "\n", "AZURE_STORAGE_SERVICE_ENDPOINT", endpoint, "AZURE_STORAGE_SAS_TOKEN", "sig=x", "AZURE_CLIENT_ID", "x"},
	} {
		s, err := object.Open("az://"+objecttest.Bucket+"/p", env(good...))
		if err != nil {
			t.Fatalf("%q: %v", good, err)
		}
		if _, err := s.Create(t.Context(), fmt.Sprintf("of-%d", i), []byte("x")); err != nil {
			t.Errorf("%q: %v", good, err)
		}
		if s.String() != "azblob://"+objecttest.Bucket+"/p" {
			t.Errorf("az:// is %s", s)
		}
	}
	wrong := base64.StdEncoding.EncodeToString([]byte("wrong"))
	s, err := object.Open("azblob://"+objecttest.Bucket, env("AZURE_STORAGE_ACCOUNT", "tests", "AZURE_STORAGE_KEY", wrong, "AZURE_STORAGE_SERVICE_ENDPOINT", endpoint))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "a", []byte("x")); err == nil || !strings.Contains(err.Error(), "403 Forbidden: AuthenticationFailed") {
		t.Errorf("with another key: %v", err)
	}
	for _, ok := range [][]string{
		{"AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true"},
		{"AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=https://acc.blob.core.windows.net/;SharedAccessSignature=sv=2023&sig=a%3D"},
		{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;AccountKey=a2V5;EndpointSuffix=core.chinacloudapi.cn"},
		{"AZURE_STORAGE_ACCOUNT", "acc"},
		{"AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=http://127.0.0.1:10000/acc;SharedAccessSignature=sig=a%3D"},
		{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "a2V5", "AZURE_STORAGE_SERVICE_ENDPOINT", "http://azurite:10000/acc"}, // a key only signs
	} {
		if _, err := object.Open("azblob://container/p", env(ok...)); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, c := range []struct {
		want string
		env  []string
	}{
		{"AZURE_STORAGE_ACCOUNT", nil},
		{"AZURE_STORAGE_ACCOUNT", []string{"AZURE_STORAGE_ACCOUNT", "secret.example.com/", "AZURE_STORAGE_KEY", "a2V5"}},
		{"AZURE_STORAGE_KEY", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "secret!"}},
		{"AZURE_STORAGE_SAS_TOKEN", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_SAS_TOKEN", "secret"}},
		{"AZURE_STORAGE_SERVICE_ENDPOINT", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "a2V5", "AZURE_STORAGE_SERVICE_ENDPOINT", "https://user:secret@host"}},
		{"AZURE_STORAGE_SERVICE_ENDPOINT", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_KEY", "a2V5", "AZURE_STORAGE_SERVICE_ENDPOINT", "https://host/?sig=secret"}},
		{"AZURE_STORAGE_SERVICE_ENDPOINT: must be https://", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_SERVICE_ENDPOINT", "http://azurite:10000/acc"}},
		{"AZURE_STORAGE_SERVICE_ENDPOINT: must be https://", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_STORAGE_SAS_TOKEN", "sig=secret", "AZURE_STORAGE_SERVICE_ENDPOINT", "http://azurite:10000/acc"}},
		{"CONNECTION_STRING: BlobEndpoint: must be https://", []string{"AZURE_STORAGE_CONNECTION_STRING", "BlobEndpoint=http://azurite:10000/acc;SharedAccessSignature=sig=secret"}},
		{"CONNECTION_STRING: BlobEndpoint: must be https://", []string{"AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=http;AccountName=acc;SharedAccessSignature=sig=secret"}},
		{"AZURE_CLIENT_ID and AZURE_TENANT_ID", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_CLIENT_SECRET", "secret"}},
		{"AZURE_TENANT_ID", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_CLIENT_SECRET", "secret", "AZURE_CLIENT_ID", "a", "AZURE_TENANT_ID", "../x"}},
		{"AZURE_AUTHORITY_HOST", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_CLIENT_SECRET", "secret", "AZURE_CLIENT_ID", "a", "AZURE_TENANT_ID", "b", "AZURE_AUTHORITY_HOST", "http://example.com"}},
		{"/no/such/file", []string{"AZURE_STORAGE_ACCOUNT", "acc", "AZURE_FEDERATED_TOKEN_FILE", "/no/such/file", "AZURE_CLIENT_ID", "a", "AZURE_TENANT_ID", "b"}},
		{"CONNECTION_STRING: must be fields", []string{"AZURE_STORAGE_CONNECTION_STRING", "secret"}},
		{"CONNECTION_STRING: has neither AccountName nor", []string{"AZURE_STORAGE_CONNECTION_STRING", "AccountKey=secret"}},
		{"CONNECTION_STRING: has neither AccountName and AccountKey nor", []string{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc"}},
		{"CONNECTION_STRING: AccountName must", []string{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=a/secret;AccountKey=a2V5"}},
		{"CONNECTION_STRING: AccountKey must", []string{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;AccountKey=secret!"}},
		{"CONNECTION_STRING: BlobEndpoint", []string{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;AccountKey=a2V5;BlobEndpoint=ftp://user:secret@x"}},
		{"CONNECTION_STRING: SharedAccessSignature must", []string{"AZURE_STORAGE_CONNECTION_STRING", "AccountName=acc;SharedAccessSignature=secret"}},
	} {
		_, err := object.Open("azblob://container/p", env(c.env...))
		var u *object.URLError
		if !errors.As(err, &u) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %s", c.env, err, c.want)
		}
	}
}
