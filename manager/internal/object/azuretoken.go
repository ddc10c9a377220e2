package object

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

const (
	azureResource  = "https://storage.azure.com/" // in all of Azure's clouds
	azureAuthority = "https://login.microsoftonline.com/"
	azureMetadata  = "http://169.254.169.254"
	// azureTokenSpare is how long a token must still be valid to be used. The metadata server has a new one earlier.
	azureTokenSpare = 2 * time.Minute
)

// azureTokens finds an identity as Azure's own programs do: the workload identity of a pod, an application with a secret, or the
// managed identity of the machine. It connects to nothing.
func azureTokens(getenv func(string) string) (oauth2.TokenSource, error) {
	client, tenant, file, secret := getenv("AZURE_CLIENT_ID"), getenv("AZURE_TENANT_ID"), getenv("AZURE_FEDERATED_TOKEN_FILE"), getenv("AZURE_CLIENT_SECRET")
	if file == "" && secret == "" {
		host := cmp.Or(getenv("AZURE_POD_IDENTITY_AUTHORITY_HOST"), azureMetadata)
		return spare(machineIdentity{client, strings.TrimRight(host, "/")}), nil
	}
	if client == "" || tenant == "" {
		return nil, errors.New("AZURE_CLIENT_ID and AZURE_TENANT_ID: must both be set with AZURE_FEDERATED_TOKEN_FILE or AZURE_CLIENT_SECRET")
	}
	if strings.ContainsAny(tenant, "/?#%") {
		return nil, errors.New("AZURE_TENANT_ID: must be the id or the domain of a tenant")
	}
	authority := cmp.Or(getenv("AZURE_AUTHORITY_HOST"), azureAuthority)
	if e, err := url.Parse(authority); !isEndpoint(e, err) || !confidential(authority) {
		return nil, fmt.Errorf("AZURE_AUTHORITY_HOST%s: must be https://HOST, without user, password and query", shown(e))
	}
	app := application{file: file, config: clientcredentials.Config{
		ClientID: client, ClientSecret: secret, TokenURL: strings.TrimRight(authority, "/") + "/" + tenant + "/oauth2/v2.0/token",
		Scopes: []string{azureResource + ".default"}, AuthStyle: oauth2.AuthStyleInParams,
	}}
	if file != "" {
		app.config.ClientSecret = ""
		if _, err := app.assertion(); err != nil {
			return nil, err
		}
	}
	return spare(app), nil
}

func spare(source oauth2.TokenSource) oauth2.TokenSource {
	return oauth2.ReuseTokenSourceWithExpiry(nil, source, azureTokenSpare)
}

// application is an identity with a secret, or with a file that has a token of its pod. Kubernetes replaces that token each
// hour.
type application struct {
	config clientcredentials.Config
	file   string
}

func (a application) Token() (*oauth2.Token, error) {
	config := a.config
	if a.file != "" {
		assertion, err := a.assertion()
		if err != nil {
			return nil, err
		}
		config.EndpointParams = url.Values{
			"client_assertion_type": {"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"}, "client_assertion": {assertion},
		}
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Timeout: tokenTimeout})
	return config.Token(ctx)
}

func (a application) assertion() (string, error) {
	b, err := os.ReadFile(a.file)
	if err != nil {
		return "", fmt.Errorf("AZURE_FEDERATED_TOKEN_FILE: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// machineIdentity asks the metadata server of the machine.
type machineIdentity struct{ client, host string }

// azureMetadataClient goes through no proxy: the metadata server is the machine's own.
var azureMetadataClient = &http.Client{Timeout: tokenTimeout, Transport: &http.Transport{}}

func (m machineIdentity) Token() (*oauth2.Token, error) {
	query := url.Values{"api-version": {"2018-02-01"}, "resource": {azureResource}}
	if m.client != "" {
		query.Set("client_id", m.client)
	}
	req, err := http.NewRequest(http.MethodGet, m.host+"/metadata/identity/oauth2/token?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Metadata", "true")
	resp, err := azureMetadataClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("the metadata server: %w (neither AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN nor AZURE_FEDERATED_TOKEN_FILE is set)", err)
	}
	b, err := answer(resp)
	if err != nil {
		return nil, fmt.Errorf("the metadata server: %w", err)
	}
	var says struct {
		AccessToken string      `json:"access_token"`
		ExpiresIn   json.Number `json:"expires_in"`
		Error       string
		Description string `json:"error_description"`
	}
	err = json.Unmarshal(b, &says)
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the metadata server: %s %s %s", resp.Status, says.Error, says.Description)
	}
	seconds, err2 := says.ExpiresIn.Int64()
	if err != nil || err2 != nil || says.AccessToken == "" || seconds <= 0 {
		return nil, errors.New("the metadata server's answer has no token")
	}
	return &oauth2.Token{AccessToken: says.AccessToken, TokenType: "Bearer", Expiry: time.Now().Add(time.Duration(seconds) * time.Second)}, nil
}
