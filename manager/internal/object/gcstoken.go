package object

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"cloud.google.com/go/compute/metadata"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// gcsScope lets a token read and write objects, but not change permissions.
const gcsScope = "https://www.googleapis.com/auth/devstorage.read_write"

// tokenSpare is how long a token must still be valid to be used. The metadata server has a new one 4 minutes before the end.
const tokenSpare = 225 * time.Second

// googleTokens finds credentials as Google's own programs do: the file that GOOGLE_APPLICATION_CREDENTIALS names,
// that of `gcloud auth application-default login`, or the machine's or pod's service account. It connects to nothing.
func googleTokens(getenv func(string) string) (oauth2.TokenSource, error) {
	if file := getenv("GOOGLE_APPLICATION_CREDENTIALS"); file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("GOOGLE_APPLICATION_CREDENTIALS: %w", err)
		}
		tokens, err := tokensOf(b)
		if err != nil {
			return nil, fmt.Errorf("GOOGLE_APPLICATION_CREDENTIALS: %s %w", file, err)
		}
		return tokens, nil
	}
	if home := getenv("HOME"); home != "" {
		file := filepath.Join(home, ".config", "gcloud", "application_default_credentials.json")
		if b, err := os.ReadFile(file); err == nil {
			tokens, err := tokensOf(b)
			if err != nil {
				return nil, fmt.Errorf("%s %w", file, err)
			}
			return tokens, nil
		}
	}
	client := metadata.NewClient(&http.Client{Timeout: tokenTimeout})
	return oauth2.ReuseTokenSourceWithExpiry(nil, metadataTokens{client}, tokenSpare), nil
}

// tokensOf reads a file of credentials. Its errors show nothing of the file.
func tokensOf(b []byte) (oauth2.TokenSource, error) {
	var file struct{ Type google.CredentialsType }
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, errors.New("is not a JSON document")
	}
	switch file.Type {
	case google.ServiceAccount, google.AuthorizedUser, google.ExternalAccount, google.ExternalAccountAuthorizedUser, google.ImpersonatedServiceAccount:
	default:
		return nil, errors.New("has no credentials of a known type, such as service_account or external_account")
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
	creds, err := google.CredentialsFromJSONWithType(ctx, b, file.Type, gcsScope)
	if err != nil {
		return nil, fmt.Errorf("has no usable credentials of type %s", file.Type)
	}
	return oauth2.ReuseTokenSource(nil, creds.TokenSource), nil
}

// metadataTokens asks the metadata server of the machine or pod. It keeps no failure, because a pod's metadata server may
// start after the pod.
type metadataTokens struct{ client *metadata.Client }

func (m metadataTokens) Token() (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tokenTimeout)
	defer cancel()
	text, err := m.client.GetWithContext(ctx, "instance/service-accounts/default/token?scopes="+url.QueryEscape(gcsScope))
	if err != nil {
		return nil, fmt.Errorf("the metadata server: %w (GOOGLE_APPLICATION_CREDENTIALS names no file)", err)
	}
	var t oauth2.Token
	if err := json.Unmarshal([]byte(text), &t); err != nil || t.AccessToken == "" || t.ExpiresIn <= 0 {
		return nil, errors.New("the metadata server's answer has no token")
	}
	t.Expiry = time.Now().Add(time.Duration(t.ExpiresIn) * time.Second)
	return &t, nil
}
