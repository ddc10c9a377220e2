package objecttest

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/oncegate/oncegate/manager/internal/object/sharedkey"
)

// azureKey is the key of every account of both servers.
var azureKey = []byte(secretKey)

func azureEnviron(url, account string) map[string]string {
	return map[string]string{
		"AZURE_STORAGE_ACCOUNT": account, "AZURE_STORAGE_KEY": base64.StdEncoding.EncodeToString(azureKey),
		"AZURE_STORAGE_SERVICE_ENDPOINT": url + "/" + account,
	}
}

// signAzure signs a request again after its headers were changed.
func signAzure(r *http.Request) {
	account, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	sharedkey.Sign(r, account, azureKey)
}

// fakeAzure speaks as much of the protocol of Azure Blob Storage as a Store needs, and as strictly: it checks signatures and
// checksums, and compares and writes as one step. It passes what Azurite passes (make test-azure).
type fakeAzure struct {
	mu    sync.Mutex
	blobs map[string]fakeBlob
	etags int64
}

type fakeBlob struct {
	body     []byte
	etag     string
	modified time.Time
}

func newFakeAzure(testing.TB) http.Handler { return &fakeAzure{blobs: make(map[string]fakeBlob)} }

func (f *fakeAzure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	container, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"+accessKey+"/"), "/")
	date, err := time.Parse(http.TimeFormat, r.Header.Get("X-Ms-Date"))
	switch {
	case !sharedkey.Valid(r, accessKey, azureKey) || err != nil || time.Since(date).Abs() > 15*time.Minute:
		refuseAzure(w, http.StatusForbidden, "AuthenticationFailed")
	case r.Header.Get("X-Ms-Version") < "2019-02-02":
		refuseAzure(w, http.StatusBadRequest, "InvalidHeaderValue")
	case container != Bucket:
		refuseAzure(w, http.StatusNotFound, "ContainerNotFound")
	case name == "" && r.Method == http.MethodGet && r.URL.Query().Get("restype") == "container" && r.URL.Query().Get("comp") == "list":
		f.list(w, r)
	case name == "":
		refuseAzure(w, http.StatusBadRequest, "UnsupportedQueryParameter")
	case r.Method == http.MethodPut:
		f.put(w, r, name)
	case r.Method == http.MethodGet:
		f.get(w, name)
	case r.Method == http.MethodDelete:
		f.delete(w, name)
	default:
		refuseAzure(w, http.StatusMethodNotAllowed, "UnsupportedHttpVerb")
	}
}

func (f *fakeAzure) put(w http.ResponseWriter, r *http.Request, name string) {
	body, err := io.ReadAll(r.Body)
	sum := base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint64(nil, crc64nvme.Checksum(body)))
	match, noneMatch := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	f.mu.Lock()
	defer f.mu.Unlock()
	old, exists := f.blobs[name]
	switch {
	case err != nil || r.Header.Get("X-Ms-Blob-Type") != "BlockBlob":
		refuseAzure(w, http.StatusBadRequest, "InvalidInput")
	case r.Header.Get("X-Ms-Content-Crc64") != sum:
		refuseAzure(w, http.StatusBadRequest, "Crc64Mismatch")
	case noneMatch == "*" && exists:
		refuseAzure(w, http.StatusConflict, "BlobAlreadyExists")
	case noneMatch != "" && noneMatch != "*" && old.etag == noneMatch, match == "*" && !exists, match != "" && match != "*" && old.etag != match:
		refuseAzure(w, http.StatusPreconditionFailed, "ConditionNotMet")
	default:
		f.etags++
		blob := fakeBlob{body, fmt.Sprintf(`"0x8%015X"`, f.etags), time.Now()}
		f.blobs[name] = blob
		w.Header().Set("Etag", blob.etag)
		w.WriteHeader(http.StatusCreated)
	}
}

func (f *fakeAzure) get(w http.ResponseWriter, name string) {
	f.mu.Lock()
	blob, ok := f.blobs[name]
	f.mu.Unlock()
	if !ok {
		refuseAzure(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	sum := md5.Sum(blob.body)
	w.Header().Set("Etag", blob.etag)
	w.Header().Set("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))
	w.Header().Set("Content-Length", strconv.Itoa(len(blob.body)))
	_, _ = w.Write(blob.body)
}

func (f *fakeAzure) delete(w http.ResponseWriter, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.blobs[name]; !ok {
		refuseAzure(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	delete(f.blobs, name)
	w.WriteHeader(http.StatusAccepted)
}

func (f *fakeAzure) list(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	most, err := strconv.Atoi(query.Get("maxresults"))
	if err != nil || most < 1 || most > 5000 {
		most = 5000
	}
	type blob struct {
		Name     string
		Modified string `xml:"Properties>Last-Modified"`
		Bytes    int    `xml:"Properties>Content-Length"`
	}
	var page struct {
		XMLName    struct{} `xml:"EnumerationResults"`
		Blobs      []blob   `xml:"Blobs>Blob"`
		NextMarker string
	}
	f.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(f.blobs)) {
		if !strings.HasPrefix(name, query.Get("prefix")) || "!"+name < query.Get("marker") {
			continue
		}
		if len(page.Blobs) == most {
			page.NextMarker = "!" + name // opaque
			break
		}
		b := f.blobs[name]
		page.Blobs = append(page.Blobs, blob{name, b.modified.UTC().Format(http.TimeFormat), len(b.body)})
	}
	f.mu.Unlock()
	body, err := xml.Marshal(page)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/xml")
	_, _ = io.Copy(w, io.MultiReader(strings.NewReader("\ufeff"+xml.Header), bytes.NewReader(body)))
}

// refuseAzure answers as Azure does, whose messages have three lines.
func refuseAzure(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Ms-Error-Code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "\ufeff%s<Error><Code>%s</Code><Message>The test's server says %s.\nRequestId:1\nTime:now</Message></Error>", xml.Header, code, code)
}

// azurite is one Azurite for all tests of a process: it reads hundreds of files to start, which takes a busy machine longer
// than most tests. A test has an account of its own.
var azurite struct {
	mu      sync.Mutex
	started *process
	used    int
}

// azureAccounts is how many tests of a process may have a server. Azurite learns their names when it starts.
const azureAccounts = 1000

func azureAccount(i int) string { return fmt.Sprintf("%s%d", accessKey, i) }

// startAzurite starts an Azurite, which keeps blobs in memory, or takes the one that runs, and makes the container in an
// account that no other test has.
func startAzurite(t testing.TB, program string) (http.Handler, string) {
	azurite.mu.Lock()
	defer azurite.mu.Unlock()
	if azurite.started == nil {
		var accounts strings.Builder
		for i := range azureAccounts {
			fmt.Fprintf(&accounts, "%s:%s;", azureAccount(i), base64.StdEncoding.EncodeToString(azureKey))
		}
		azurite.started = launch(t, []string{"AZURITE_ACCOUNTS=" + accounts.String()}, program,
			"--inMemoryPersistence", "--blobPort", "0", "--disableTelemetry", "--silent")
	}
	p := azurite.started
	var address string
	p.await(t, func() bool {
		_, after, ok := strings.Cut(p.String(), "successfully listens on http://")
		address, _, _ = strings.Cut(after, "\n")
		return ok && strings.Contains(after, "\n")
	})
	if azurite.used == azureAccounts {
		t.Fatalf("more than %d tests want a server", azureAccounts)
	}
	account := azureAccount(azurite.used)
	azurite.used++
	h := forward(t, "tcp", strings.TrimSpace(address))
	container := func(method string, want int) {
		req := httptest.NewRequest(method, "http://127.0.0.1/"+account+"/"+Bucket+"?restype=container", nil)
		req.Header.Set("X-Ms-Version", "2023-11-03")
		signAzure(req)
		answer := httptest.NewRecorder()
		if h.ServeHTTP(answer, req); answer.Code != want {
			t.Errorf("%s of the container: %d %s", method, answer.Code, answer.Body)
		}
	}
	container(http.MethodPut, http.StatusCreated)
	t.Cleanup(func() { container(http.MethodDelete, http.StatusAccepted) }) // its memory is of use to others
	return h, account
}
