// Package sharedkey signs requests to Azure Blob Storage with the key of a storage account. The rules are in
// "Authorize with Shared Key" of Azure's documentation.
package sharedkey

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signed are the standard headers that a signature covers, in its order.
var signed = []string{
	"Content-Encoding", "Content-Language", "Content-Length", "Content-Md5", "Content-Type", "Date",
	"If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range",
}

// Sign sets the headers X-Ms-Date, unless it is set, and Authorization. The URL, the other headers and ContentLength must be final.
func Sign(req *http.Request, account string, key []byte) {
	if req.Header.Get("X-Ms-Date") == "" {
		req.Header.Set("X-Ms-Date", time.Now().UTC().Format(http.TimeFormat))
	}
	req.Header.Set("Authorization", authorization(req, account, key))
}

// Valid reports whether the key signed a request. It does not check the date.
func Valid(req *http.Request, account string, key []byte) bool {
	return hmac.Equal([]byte(req.Header.Get("Authorization")), []byte(authorization(req, account, key)))
}

func authorization(req *http.Request, account string, key []byte) string {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(stringToSign(req, account)))
	return fmt.Sprintf("SharedKey %s:%s", account, base64.StdEncoding.EncodeToString(h.Sum(nil)))
}

func stringToSign(req *http.Request, account string) string {
	var b strings.Builder
	b.WriteString(req.Method + "\n")
	for _, name := range signed {
		value := req.Header.Get(name)
		if name == "Content-Length" {
			value = "" // also for a body of no bytes
			if req.ContentLength > 0 {
				value = strconv.FormatInt(req.ContentLength, 10)
			}
		}
		b.WriteString(value + "\n")
	}
	headers := make(map[string]string)
	for name, values := range req.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-ms-") {
			headers[name] = strings.Join(values, ",")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		b.WriteString(name + ":" + headers[name] + "\n")
	}
	b.WriteString("/" + account + req.URL.EscapedPath())
	query := req.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) { // all in lower case
		slices.Sort(query[name])
		b.WriteString("\n" + name + ":" + strings.Join(query[name], ","))
	}
	return b.String()
}
