package object

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
)

// azureAccount is a storage account and the credentials for it. One of key, sas and tokens is set.
type azureAccount struct {
	account  string // empty where only the endpoint is known
	endpoint string // without a slash at the end
	key      []byte
	sas      string // a query
	tokens   *tokens
}

// azureName is the form of an account's name, which becomes part of a host.
var azureName = regexp.MustCompile(`^[a-z0-9]{3,24}$`)

const azureDomain = "core.windows.net"

// azureFromEnv finds the account as Azure's own programs do. It connects to nothing, and its errors show no secrets.
func azureFromEnv(getenv func(string) string) (*azureAccount, error) {
	if text := getenv("AZURE_STORAGE_CONNECTION_STRING"); text != "" {
		a, err := azureFromString(text)
		if err != nil {
			return nil, fmt.Errorf("AZURE_STORAGE_CONNECTION_STRING: %w", err)
		}
		return a, nil
	}
	a := &azureAccount{account: getenv("AZURE_STORAGE_ACCOUNT")}
	if !azureName.MatchString(a.account) {
		return nil, errors.New("AZURE_STORAGE_ACCOUNT: must be the name of a storage account, 3 to 24 lower-case letters and digits, unless AZURE_STORAGE_CONNECTION_STRING is set")
	}
	var err error
	if a.endpoint, err = azureEndpoint(getenv("AZURE_STORAGE_SERVICE_ENDPOINT"), "https", a.account, azureDomain); err != nil {
		return nil, fmt.Errorf("AZURE_STORAGE_SERVICE_ENDPOINT%w", err)
	}
	if key := getenv("AZURE_STORAGE_KEY"); key != "" {
		if a.key, err = azureKey(key); err != nil {
			return nil, fmt.Errorf("AZURE_STORAGE_KEY: %w", err)
		}
		return a, nil
	}
	if sas := getenv("AZURE_STORAGE_SAS_TOKEN"); sas != "" {
		if a.sas, err = azureSAS(sas); err != nil {
			return nil, fmt.Errorf("AZURE_STORAGE_SAS_TOKEN: %w", err)
		}
	}
	if !confidential(a.endpoint) {
		return nil, errors.New("AZURE_STORAGE_SERVICE_ENDPOINT: must be https:// without AZURE_STORAGE_KEY, since each request has the signature or a token")
	}
	if a.sas != "" {
		return a, nil
	}
	source, err := azureTokens(getenv)
	if err != nil {
		return nil, err
	}
	a.tokens = &tokens{source: source}
	return a, nil
}

// azureFromString reads a connection string: fields NAME=VALUE with ";" between them. Those of other services do not matter.
func azureFromString(text string) (*azureAccount, error) {
	fields := make(map[string]string)
	for field := range strings.SplitSeq(text, ";") {
		if field = strings.TrimSpace(field); field == "" {
			continue
		}
		name, value, ok := strings.Cut(field, "=")
		if !ok {
			return nil, errors.New("must be fields NAME=VALUE with \";\" between them")
		}
		fields[strings.ToLower(name)] = value
	}
	if fields["usedevelopmentstorage"] == "true" { // the account that every emulator has
		return azureFromString("DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;" +
			"AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
	}
	a := &azureAccount{account: fields["accountname"]}
	if a.account != "" && !azureName.MatchString(a.account) {
		return nil, errors.New("AccountName must have 3 to 24 lower-case letters and digits")
	}
	if a.account == "" && fields["blobendpoint"] == "" {
		return nil, errors.New("has neither AccountName nor BlobEndpoint")
	}
	scheme, domain := cmp.Or(fields["defaultendpointsprotocol"], "https"), cmp.Or(fields["endpointsuffix"], azureDomain)
	var err error
	if a.endpoint, err = azureEndpoint(fields["blobendpoint"], scheme, a.account, domain); err != nil {
		return nil, fmt.Errorf("BlobEndpoint%w", err)
	}
	switch {
	case fields["accountkey"] != "" && a.account != "":
		if a.key, err = azureKey(fields["accountkey"]); err != nil {
			return nil, fmt.Errorf("AccountKey %w", err)
		}
	case fields["sharedaccesssignature"] != "":
		if a.sas, err = azureSAS(fields["sharedaccesssignature"]); err != nil {
			return nil, fmt.Errorf("SharedAccessSignature %w", err)
		}
		if !confidential(a.endpoint) {
			return nil, errors.New("BlobEndpoint: must be https:// with SharedAccessSignature, which each request has")
		}
	default:
		return nil, errors.New("has neither AccountName and AccountKey nor SharedAccessSignature")
	}
	return a, nil
}

// azureEndpoint is the URL of an account: the one given, or else by Azure's scheme.
func azureEndpoint(given, scheme, account, domain string) (string, error) {
	if given == "" {
		given = scheme + "://" + account + ".blob." + domain
	}
	e, err := url.Parse(given)
	if !isEndpoint(e, err) {
		return "", fmt.Errorf("%s: must be https://HOST or http://HOST:PORT/ACCOUNT, without user, password and query", shown(e))
	}
	return e.Scheme + "://" + e.Host + strings.TrimRight(e.EscapedPath(), "/"), nil
}

func azureKey(text string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil || len(key) == 0 {
		return nil, errors.New("must be the account's key, in base64")
	}
	return key, nil
}

// azureSAS checks a shared access signature, which is a query.
func azureSAS(text string) (string, error) {
	text = strings.TrimPrefix(strings.TrimSpace(text), "?")
	q, err := url.ParseQuery(text)
	if err != nil || q.Get("sig") == "" {
		return "", errors.New("must be a shared access signature: a query with sig=")
	}
	return q.Encode(), nil
}

// confidential reports whether a request to a URL is encrypted or stays on this machine.
func confidential(to string) bool {
	u, err := url.Parse(to)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
