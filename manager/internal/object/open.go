package object

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// URLError is an error in a store's URL, or in the environment that it
// needs.
type URLError struct {
	// URL is empty when the text is not a URL, because any part of it may be a secret. Allowed says what must be
	// changed.
	URL, Allowed string
}

func (e *URLError) Error() string {
	if e.URL == "" {
		return e.Allowed
	}
	return fmt.Sprintf("%q: %s", e.URL, e.Allowed)
}

// Forms are the URLs that Open takes.
const Forms = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, azblob://CONTAINER/PREFIX or file:///DIR"

const forms = "must be " + Forms

// Open makes a client of the store at a URL; it connects to nothing.
//
//	s3://BUCKET/PREFIX   by AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
//	                     AWS_REGION and AWS_ENDPOINT_URL, as getenv returns them. Without
//	                     keys it uses those of the machine's or pod's role.
//	gs://BUCKET/PREFIX   by the file that GOOGLE_APPLICATION_CREDENTIALS names or gcloud made in
//	                     HOME, or the machine's or pod's service account. STORAGE_EMULATOR_HOST
//	                     names an emulator, which gets no credentials.
//	azblob://CONTAINER/PREFIX, or az:
//	                     by AZURE_STORAGE_CONNECTION_STRING, or else AZURE_STORAGE_ACCOUNT with
//	                     AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or an identity: that of
//	                     AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE or
//	                     AZURE_CLIENT_SECRET, or the machine's. AZURE_STORAGE_SERVICE_ENDPOINT
//	                     is where the account is, when not in Azure's public cloud.
//	file:///DIR          a directory, which is created with the first object
//
// The error is a *URLError.
func Open(rawURL string, getenv func(string) string) (Store, error) {
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, &URLError{"", "is not a URL; " + forms} // which may hold a password
	}
	switch {
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		plain := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path} // the rest may hold a secret
		return nil, &URLError{plain.String(), forms + ", without user, query and fragment"}
	case u.Scheme == "s3":
		return openRemote(u, "s3", "bucket", "ETag", openS3, getenv)
	case u.Scheme == "gs":
		return openRemote(u, "gs", "bucket", "generation", openGCS, getenv)
	case u.Scheme == "azblob" || u.Scheme == "az":
		return openRemote(u, "azblob", "container", "ETag", openAzure, getenv)
	case u.Scheme == "file":
		if u.Host != "" || !path.IsAbs(u.Path) || path.Clean(u.Path) == "/" {
			return nil, &URLError{rawURL, "must be file:///DIR with an absolute path, and not the root"}
		}
		return OpenDir(path.Clean(u.Path)), nil
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

// shown is a URL in a message. It is empty for a URL with more than a host and a path, and for a text
// that is not a URL, because these may hold a secret.
func shown(u *url.URL) string {
	if u == nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" || strings.Contains(u.Path, "@") {
		return ""
	}
	return fmt.Sprintf(" %q", u.String())
}

// isEndpoint reports whether a URL names a server and holds no secret.
func isEndpoint(e *url.URL, err error) bool {
	return err == nil && e.Host != "" && (e.Scheme == "http" || e.Scheme == "https") && e.User == nil && e.RawQuery == "" && e.Fragment == "" && !e.ForceQuery
}
