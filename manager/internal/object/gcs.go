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
// the condition of a write is ifGenerationMatch. Each call is one request, which is never sent twice
// (a listing may take several): only the caller knows whether an answer was lost.
type gcsStore struct {
	client *http.Client
	base   string // without a slash at the end
	bucket string
	prefix string
	tokens *tokens // nil: without authentication, as emulators want it
}

func openGCS(u *url.URL, getenv func(string) string) (Store, error) {
	if u.Host == "" {
		return nil, &URLError{u.String(), "the bucket is missing; " + forms}
	}
	if err := checkName(u.Host); err != nil {
		return nil, &URLError{u.String(), "the bucket has no valid name; " + forms}
	}
	prefix, err := prefixOf(u)
	if err != nil {
		return nil, err
	}
	s := &gcsStore{client: newClient(), base: "https://storage.googleapis.com", bucket: u.Host, prefix: prefix}
	if host := getenv("STORAGE_EMULATOR_HOST"); host != "" {
		if !strings.Contains(host, "://") {
			host = "http://" + host
		}
		e, err := url.Parse(host)
		if !isEndpoint(e, err) || strings.Trim(e.Path, "/") != "" {
			return nil, &URLError{u.String(), fmt.Sprintf("STORAGE_EMULATOR_HOST%s: must be HOST:PORT, http://HOST:PORT or https://HOST:PORT, without user, password and query", shown(e))}
		}
		s.base = e.Scheme + "://" + e.Host
		return s, nil
	}
	source, err := googleTokens(getenv)
	if err != nil {
		return nil, &URLError{u.String(), err.Error()}
	}
	s.tokens = &tokens{source: source}
	return s, nil
}

func (s *gcsStore) String() string {
	return strings.TrimSuffix("gs://"+s.bucket+"/"+s.prefix, "/")
}

func (s *gcsStore) Create(ctx context.Context, name string, body []byte) (Version, error) {
	v, err := s.put(ctx, name, body, "0") // which no object has
	if isHTTPStatus(err, http.StatusPreconditionFailed) {
		err = fmt.Errorf("%w: %s", ErrExists, name)
	}
	return v, err
}

func (s *gcsStore) Replace(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	generation := string(old)
	if n, err := strconv.ParseInt(generation, 10, 64); err != nil || n <= 0 {
		generation = "1" // not a generation of any object: those count microseconds since 1970
	}
	v, err := s.put(ctx, name, body, generation)
	if isHTTPStatus(err, http.StatusPreconditionFailed) {
		err = fmt.Errorf("%w: %s", ErrChanged, name)
	}
	return v, err
}

// put writes an object if its generation is the one given. The description and the body are the two parts of one request.
func (s *gcsStore) put(ctx context.Context, name string, body []byte, generation string) (Version, error) {
	if err := checkBody(name, body); err != nil {
		return "", err
	}
	about, err := json.Marshal(map[string]string{
		"name": s.prefix + name, "contentType": "application/octet-stream", "crc32c": crc32c(body),
	})
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
	var written struct{ Generation string }
	if err := s.doJSON(req, &written); err != nil {
		return "", s.failed("write", name, err)
	}
	if written.Generation == "" {
		return "", s.failed("write", name, errors.New("the answer has no generation"))
	}
	return Version(written.Generation), nil
}

func (s *gcsStore) Get(ctx context.Context, name string) ([]byte, Version, error) {
	if err := checkName(name); err != nil {
		return nil, "", err
	}
	resp, err := s.object(ctx, http.MethodGet, name, "?alt=media")
	if isMissing(err) {
		return nil, "", fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if err != nil {
		return nil, "", s.failed("read", name, err)
	}
	defer resp.Body.Close()
	if resp.ContentLength > MaxBytes {
		return nil, "", fmt.Errorf("%w: %s has %d bytes, allowed are %d", ErrTooLarge, name, resp.ContentLength, MaxBytes)
	}
	b, err := readBody(resp.Body, resp.ContentLength)
	if err != nil {
		return nil, "", s.failed("read", name, err)
	}
	generation := resp.Header.Get("X-Goog-Generation")
	if generation == "" {
		return nil, "", s.failed("read", name, errors.New("the answer has no generation"))
	}
	sums := strings.Split(strings.Join(resp.Header.Values("X-Goog-Hash"), ","), ",")
	if !slices.ContainsFunc(sums, func(sum string) bool { return strings.TrimSpace(sum) == "crc32c="+crc32c(b) }) {
		return nil, "", s.failed("read", name, errors.New("the body does not have the CRC-32C of the answer"))
	}
	return b, Version(generation), nil
}

func (s *gcsStore) List(ctx context.Context, prefix, after string) ([]Info, error) {
	query := url.Values{
		"prefix": {s.prefix + prefix}, "maxResults": {strconv.Itoa(MaxList)}, "fields": {"items(name,size,updated),nextPageToken"},
	}
	if after != "" {
		query.Set("startOffset", s.prefix+after) // itself included
	}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+"/storage/v1/b/"+url.PathEscape(s.bucket)+"/o?"+query.Encode(), nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Items []struct {
				Name    string
				Size    int64 `json:",string"`
				Updated time.Time
			}
			NextPageToken string
		}
		if err := s.doJSON(req, &page); err != nil {
			return nil, s.failed("list", prefix, err)
		}
		var infos []Info
		for _, o := range page.Items {
			if name, ok := strings.CutPrefix(o.Name, s.prefix); ok && name > after {
				infos = append(infos, Info{name, o.Size, o.Updated})
			}
		}
		if len(infos) > 0 || page.NextPageToken == "" {
			return infos, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

func (s *gcsStore) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	resp, err := s.object(ctx, http.MethodDelete, name, "")
	if err == nil {
		return resp.Body.Close()
	}
	if isMissing(err) {
		return nil
	}
	return s.failed("delete", name, err)
}

// object asks for one object.
func (s *gcsStore) object(ctx context.Context, method, name, query string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+"/storage/v1/b/"+url.PathEscape(s.bucket)+"/o/"+url.PathEscape(s.prefix+name)+query, nil)
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

// doJSON reads an answer.
func (s *gcsStore) doJSON(req *http.Request, to any) error {
	resp, err := s.do(req)
	if err != nil {
		return err
	}
	b, err := answer(resp)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, to)
}

func (s *gcsStore) failed(what, name string, err error) error {
	return fmt.Errorf("object: cannot %s %s/%s: %w", what, s, name, err)
}

// isMissing reports whether the object is missing. A missing bucket has the same status.
func isMissing(err error) bool {
	var e *httpError
	return errors.As(err, &e) && e.status == http.StatusNotFound && !strings.Contains(e.message, "bucket does not exist")
}

// crc32c is the checksum in the form that Google uses.
func crc32c(body []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.Checksum(body, castagnoli)))
}
