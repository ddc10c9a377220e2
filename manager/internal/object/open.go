package object

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// URLError tells what is wrong with a store's URL, or with the environment that it
// needs.
type URLError struct {
	// URL is empty when the text is no URL: it is not known where in it a secret might be.
	URL, Allowed string
}

func (e *URLError) Error() string {
	if e.URL == "" {
		return e.Allowed
	}
	return fmt.Sprintf("%q: %s", e.URL, e.Allowed)
}

const forms = "must be s3://BUCKET/PREFIX or file:///DIR"

// Open makes a client of the store at a URL; it connects to nothing.
//
//	s3://BUCKET/PREFIX   by AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
//	                     AWS_REGION and AWS_ENDPOINT_URL, as getenv gives them. Without
//	                     keys it asks the machine's or pod's role for some.
//	file:///DIR          a directory, which is created with the first object
//
// gs:// and azblob:// are refused, see docs/RATIONALE.md. The error is a *URLError.
func Open(rawURL string, getenv func(string) string) (Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, &URLError{"", "is not a URL; " + forms} // which may hold a password
	}
	switch {
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return nil, &URLError{u.Redacted(), forms + ", without user, query and fragment"}
	case u.Scheme == "s3":
		return openS3(u, getenv)
	case u.Scheme == "file":
		if u.Host != "" || !path.IsAbs(u.Path) || path.Clean(u.Path) == "/" {
			return nil, &URLError{rawURL, "must be file:///DIR with an absolute path, and not the root"}
		}
		return OpenDir(path.Clean(u.Path)), nil
	case u.Scheme == "gs" || u.Scheme == "azblob":
		return nil, &URLError{rawURL, u.Scheme + ":// is not supported yet; " + forms}
	}
	return nil, &URLError{rawURL, forms}
}

// prefixOf is the prefix of all names below a URL's path: empty, or ending with a
// slash.
func prefixOf(u *url.URL) (string, error) {
	p := strings.Trim(u.Path, "/")
	if p == "" {
		return "", nil
	}
	if err := checkName(p); err != nil {
		return "", &URLError{u.String(), "the prefix may have letters, digits, \".\", \"_\" and \"-\", with \"/\" between words"}
	}
	return p + "/", nil
}
