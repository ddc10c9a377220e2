package object

import (
	"bytes"
	"cmp"
	"context"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/minio/crc64nvme"

	"github.com/oncegate/oncegate/manager/internal/object/sharedkey"
)

// azureStore speaks the protocol of Azure Blob Storage. A version is the blob's ETag, and the conditions of a write are If-Match
// and If-None-Match.
type azureStore struct {
	client *http.Client
	azureAccount
	container string

	mu      sync.Mutex
	markers map[[2]string]azureMarker // by prefix and after, where the listing continues
}

// azureMarker is the marker of a page, and the last name before the page.
type azureMarker struct{ marker, last string }

// azureVersion is the version of the protocol: emulators and Azure's other clouds know it as well.
const azureVersion = "2023-11-03"

// azureContainer is the form of a container's name. In addition, no hyphen follows another.
var azureContainer = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$`)

func openAzure(container string, getenv func(string) string) (service, error) {
	if !azureContainer.MatchString(container) || strings.Contains(container, "--") {
		return nil, errors.New("the container must have 3 to 63 lower-case letters, digits and single hyphens; " + forms)
	}
	account, err := azureFromEnv(getenv)
	if err != nil {
		return nil, err
	}
	return &azureStore{client: newClient(), azureAccount: *account, container: container, markers: make(map[[2]string]azureMarker)}, nil
}

// azureETag is the form of an ETag that may be a condition. "*" would allow any version.
var azureETag = regexp.MustCompile(`^"[^"*]+"$`)

// put writes a blob with a checksum that the server checks.
func (s *azureStore) put(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	b := lend(body)
	defer b.end()
	req, err := s.request(ctx, http.MethodPut, name, nil)
	if err != nil {
		return "", err
	}
	req.Body, req.ContentLength = io.NopCloser(b), b.size
	req.Header.Set("Content-Type", b.contentType)
	req.Header.Set("X-Ms-Blob-Type", "BlockBlob")
	req.Header.Set("X-Ms-Content-Crc64", base64.StdEncoding.EncodeToString(binary.LittleEndian.AppendUint64(nil, crc64nvme.Checksum(body))))
	switch {
	case old == "":
		req.Header.Set("If-None-Match", "*")
	case azureETag.MatchString(string(old)):
		req.Header.Set("If-Match", string(old))
	default:
		req.Header.Set("If-Match", `"0x0"`) // not one of any blob
	}
	resp, err := s.do(req)
	// Leases, policies and more have the status of a condition that was not met.
	var e *httpError
	if errors.As(err, &e) && (e.status == http.StatusPreconditionFailed && !strings.HasPrefix(e.code, "Lease") || e.code == "BlobAlreadyExists") ||
		old != "" && errors.Is(err, ErrNotFound) {
		err = ErrChanged
	}
	if err != nil {
		return "", err
	}
	_, err = answer(resp)
	return Version(resp.Header.Get("Etag")), err
}

func (s *azureStore) get(ctx context.Context, name string) (*content, error) {
	resp, err := s.ask(ctx, http.MethodGet, name, nil)
	if err != nil {
		return nil, err
	}
	return &content{resp.Body, resp.ContentLength, Version(resp.Header.Get("Etag")), func(b []byte) error {
		// A blob that was copied in blocks has no checksum.
		if sum := resp.Header.Get("Content-Md5"); sum != "" && sum != md5Of(b) {
			return errors.New("the body does not have the MD5 of the answer")
		}
		return nil
	}}, nil
}

// md5Of is the checksum that Azure makes of each blob.
func md5Of(body []byte) string {
	sum := md5.Sum(body)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// azurePage is an answer to a listing.
type azurePage struct {
	Blobs []struct {
		Name       string
		Properties struct {
			Bytes    int64  `xml:"Content-Length"`
			Modified string `xml:"Last-Modified"`
		}
	} `xml:"Blobs>Blob"`
	NextMarker string
}

// list cannot begin with a name in this protocol, only with the marker that ends a page. So it remembers markers, and without
// one it reads from the beginning.
func (s *azureStore) list(ctx context.Context, prefix, after string) ([]Info, error) {
	query := url.Values{
		"restype": {"container"}, "comp": {"list"}, "prefix": {prefix}, "maxresults": {strconv.Itoa(MaxList)},
	}
	for at := s.marker(prefix, after); ; {
		if at.marker != "" {
			query.Set("marker", at.marker)
		}
		page, err := s.page(ctx, query)
		if err != nil {
			s.remember(prefix, after, azureMarker{}) // the marker may no longer be valid
			return nil, err
		}
		var infos []Info
		last := at.last
		for _, o := range page.Blobs {
			if o.Properties.Bytes == 0 { // a directory of an account with a hierarchical namespace
				continue
			}
			if o.Name <= last {
				return nil, fmt.Errorf("%s comes after %s: the account must not have a hierarchical namespace", o.Name, last)
			}
			last = o.Name
			if o.Name > after {
				modified, _ := time.Parse(http.TimeFormat, o.Properties.Modified)
				infos = append(infos, Info{o.Name, o.Properties.Bytes, modified})
			}
		}
		next := azureMarker{page.NextMarker, last}
		if next.marker == "" { // what comes later is on this page
			next = at
		}
		if len(infos) > 0 {
			s.remember(prefix, last, next)
		}
		if len(infos) > 0 || page.NextMarker == "" {
			return infos, nil
		}
		at = next
	}
}

func (s *azureStore) page(ctx context.Context, query url.Values) (azurePage, error) {
	var page azurePage
	resp, err := s.ask(ctx, http.MethodGet, "", query)
	if err != nil {
		return page, err
	}
	b, err := answer(resp)
	if err != nil {
		return page, err
	}
	return page, xml.Unmarshal(bytes.TrimPrefix(b, []byte("\ufeff")), &page)
}

// maxMarkers bounds the listings that continue where they ended.
const maxMarkers = 64

func (s *azureStore) marker(prefix, after string) azureMarker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.markers[[2]string{prefix, after}]
}

func (s *azureStore) remember(prefix, after string, marker azureMarker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.markers) >= maxMarkers {
		clear(s.markers)
	}
	s.markers[[2]string{prefix, after}] = marker
}

func (s *azureStore) delete(ctx context.Context, name string) error {
	resp, err := s.ask(ctx, http.MethodDelete, name, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// request is one about a blob, or about the container when name is empty.
func (s *azureStore) request(ctx context.Context, method, name string, query url.Values) (*http.Request, error) {
	at := s.endpoint + "/" + s.container
	if name != "" {
		at += "/" + name
	}
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Ms-Version", azureVersion)
	return req, nil
}

// ask sends a request without a body.
func (s *azureStore) ask(ctx context.Context, method, name string, query url.Values) (*http.Response, error) {
	req, err := s.request(ctx, method, name, query)
	if err != nil {
		return nil, err
	}
	return s.do(req)
}

// do sends a request with its credentials. An answer other than 2xx is an *httpError, or ErrNotFound when the
// blob is missing. A missing container has the same status.
func (s *azureStore) do(req *http.Request) (*http.Response, error) {
	switch {
	case s.key != nil:
		sharedkey.Sign(req, s.account, s.key)
	case s.sas != "":
		if req.URL.RawQuery != "" {
			req.URL.RawQuery += "&"
		}
		req.URL.RawQuery += s.sas
	default:
		token, err := s.tokens.get(req.Context())
		if err != nil {
			return nil, fmt.Errorf("no token of Azure: %w", err)
		}
		token.SetAuthHeader(req)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // its URL may have a signature
			err = u.Err
		}
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	text := errorText(resp)
	var says struct{ Code, Message string }
	err = xml.Unmarshal([]byte(strings.TrimPrefix(text, "\ufeff")), &says)
	if err == nil || says.Message != "" { // the end of a long one is missing
		// The further lines are the request's number and time.
		text, _, _ = strings.Cut(strings.TrimSpace(says.Message), "\n")
	}
	code := cmp.Or(resp.Header.Get("X-Ms-Error-Code"), says.Code)
	if resp.StatusCode == http.StatusNotFound && code == "BlobNotFound" {
		return nil, ErrNotFound
	}
	return nil, &httpError{resp.StatusCode, oneLine(code), oneLine(text)}
}
