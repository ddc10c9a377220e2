package sharedkey

import (
	"net/http"
	"strings"
	"testing"
)

// The requests and signatures are those of Azure's library for Go, azblob 1.8.0.
func TestSignaturesAreThoseOfAzuresLibrary(t *testing.T) {
	key := []byte("secret-of-tests")
	for _, c := range []struct {
		method, url, body string
		header            map[string]string
		want              string
	}{
		{"PUT", "https://account.blob.core.windows.net/ledgers/some%2Fprefix%2Flease", "123456789", map[string]string{
			"Content-Type": "application/octet-stream", "If-Match": `"0x8DD"`, "Accept": "application/xml", "X-Ms-Date": "Mon, 23 Nov 2026 13:38:44 GMT",
			"X-Ms-Blob-Content-Type": "application/octet-stream", "X-Ms-Blob-Type": "BlockBlob", "X-Ms-Content-Crc64": "iJh5CoYUi64=", "X-Ms-Version": "2026-06-06",
		}, "SharedKey account:sms6lYqfTp7OV+gHKmwctLvZtrewXbGPhr3AW9TznzM="},
		{"GET", "https://account.blob.core.windows.net/ledgers?comp=list&marker=2%21x%2Fy%3D%3D&maxresults=1000&prefix=some%2Fprefix%2F&restype=container", "", map[string]string{
			"X-Ms-Date": "Mon, 23 Nov 2026 13:38:44 GMT", "X-Ms-Version": "2026-06-06",
		}, "SharedKey account:oSquSiqpTw9j/mq3hWxXoXFNVNPLY2PPm1tt2uCA2ZA="},
	} {
		req, err := http.NewRequest(c.method, c.url, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range c.header {
			req.Header.Set(name, value)
		}
		Sign(req, "account", key)
		if got := req.Header.Get("Authorization"); got != c.want {
			t.Errorf("%s: %s, want %s", c.method, got, c.want)
		}
		if !Valid(req, "account", key) || Valid(req, "account", []byte("other")) || Valid(req, "other", key) {
			t.Errorf("%s: the signature is not judged", c.method)
		}
		req.Header.Set("X-Ms-Version", "2026-06-07")
		if Valid(req, "account", key) {
			t.Errorf("%s: a changed header was not noticed", c.method)
		}
	}
}
