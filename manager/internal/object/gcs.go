package object

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// gcsStore speaks the JSON interface of Google Cloud Storage. A version is the object's generation, and
// the condition of a write is ifGenerationMatch.
type gcsStore struct {
	client *http.Client
	base   string // without a slash at the end
	bucket string
	tokens *tokens // nil: without authentication, as emulators want it
}

func openGCS(bucket string, getenv func(string) string) (service, error) {
	if checkName(bucket) != nil {
		return nil, errors.New("the bucket has no valid name; " + forms)
	}
	s := &gcsStore{client: newClient(), base: "https://storage.googleapis.com", bucket: bucket}
	if host := getenv("STORAGE_EMULATOR_HOST"); host != "" {
		if !strings.Contains(host, "://") {
			host = "http://" + host
		}
		e, err := url.Parse(host)
		if !isEndpoint(e, err) || strings.Trim(e.Path, "/") != "" {
			return nil, fmt.Errorf("STORAGE_EMULATOR_HOST%s: must be HOST:PORT, http://HOST:PORT or https://HOST:PORT, without user, password and query", shown(e))
		}
		s.base = e.Scheme + "://" + e.Host
		return s, nil
	}
	source, err := googleTokens(getenv)
	s.tokens = &tokens{source: source}
	return s, err
}

// put sends the description and the body as the two parts of one request.
func (s *gcsStore) put(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	generation := "0" // which no object has
	if old != "" {
		generation = string(old)
		if n, err := strconv.ParseInt(generation, 10, 64); err != nil || n <= 0 {
			generation = "1" // not a generation of any object: those count microseconds since 1970
		}
	}
	about, err := json.Marshal(map[string]string{"name": name, "contentType": "application/octet-stream", "crc32c": crc32c(body)})
	if err != nil {
		return "", err
	}
	b, err := relatedParts(about, body)
	if err != nil {
		return "", err
	}
	defer b.end()
	query := url.Values{"uploadType": {"multipart"}, "ifGenerationMatch": {generation}, "fields": {"generation"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/upload/storage/v1/b/"+url.PathEscape(s.bucket)+"/o?"+query.Encode(), b)
	if err != nil {
		return "", err
	}
	req.ContentLength = b.size
	req.Header.Set("Content-Type", b.contentType)
	var written struct{ Generation Version }
	resp, err := s.do(req)
	if err == nil {
		err = readJSON(resp, &written)
	}
	var e *httpError
	if errors.As(err, &e) && e.status == http.StatusPreconditionFailed {
		err = ErrChanged
	}
	return written.Generation, err
}

func (s *gcsStore) get(ctx context.Context, name string) (*content, error) {
	resp, err := s.object(ctx, http.MethodGet, name, "?alt=media")
	if err != nil {
		return nil, err
	}
	return &content{resp.Body, resp.ContentLength, Version(resp.Header.Get("X-Goog-Generation")), func(b []byte) error {
		sums := strings.Split(strings.Join(resp.Header.Values("X-Goog-Hash"), ","), ",")
		if !slices.ContainsFunc(sums, func(sum string) bool { return strings.TrimSpace(sum) == "crc32c="+crc32c(b) }) {
			return errors.New("the body does not have the CRC-32C of the answer")
		}
		return nil
	}}, nil
}

func (s *gcsStore) list(ctx context.Context, prefix, after string) ([]Info, error) {
	query := url.Values{
		"prefix": {prefix}, "maxResults": {strconv.Itoa(MaxList)}, "fields": {"items(name,size,updated),nextPageToken"},
	}
	if after != "" {
		query.Set("startOffset", after) // itself included
	}
	for {
		var page struct {
			Items []struct {
				Name    string
				Size    int64 `json:",string"`
				Updated time.Time
			}
			NextPageToken string
		}
		resp, err := s.ask(ctx, http.MethodGet, "?"+query.Encode())
		if err == nil {
			err = readJSON(resp, &page)
		}
		if err != nil {
			return nil, err
		}
		var infos []Info
		for _, o := range page.Items {
			if o.Name > after {
				infos = append(infos, Info{o.Name, o.Size, o.Updated})
			}
		}
		if len(infos) > 0 || page.NextPageToken == "" {
			return infos, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

func (s *gcsStore) delete(ctx context.Context, name string) error {
	resp, err := s.object(ctx, http.MethodDelete, name, "")
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// object asks for one object. The error is ErrNotFound when it is missing. A missing bucket has the same status.
func (s *gcsStore) object(ctx context.Context, method, name, query string) (*http.Response, error) {
	resp, err := s.ask(ctx, method, "/"+url.PathEscape(name)+query)
	var e *httpError
	if errors.As(err, &e) && e.status == http.StatusNotFound && !strings.Contains(e.message, "bucket does not exist") {
		err = ErrNotFound
	}
	return resp, err
}

// ask sends a request without a body about the bucket's objects, or about one of them.
func (s *gcsStore) ask(ctx context.Context, method, what string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+"/storage/v1/b/"+url.PathEscape(s.bucket)+"/o"+what, nil)
	if err != nil {
		return nil, err
	}
	return s.do(req)
}

// do sends a request with a token. An answer other than 2xx is an *httpError.
func (s *gcsStore) do(req *http.Request) (*http.Response, error) {
	if s.tokens != nil {
		token, err := s.tokens.get(req.Context())
		if err != nil {
			return nil, fmt.Errorf("no token of Google: %w", err)
		}
		token.SetAuthHeader(req)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	text := errorText(resp)
	var e struct{ Error struct{ Message string } }
	if json.Unmarshal([]byte(text), &e) == nil {
		text = e.Error.Message
	}
	return nil, &httpError{resp.StatusCode, "", oneLine(text)}
}

func readJSON(resp *http.Response, to any) error {
	b, err := answer(resp)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

// crc32c is the checksum in the form that Google uses.
func crc32c(body []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(body, castagnoli)))
}
