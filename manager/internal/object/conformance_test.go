package object_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/object"
	"github.com/oncegate/oncegate/manager/internal/object/objecttest"
)

func TestDirectoryIsAnObjectStore(t *testing.T) {
	t.Parallel()
	objecttest.Run(t, func(t *testing.T) object.Store {
		s, err := object.Open("file://"+filepath.Join(t.TempDir(), "store"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

// TestServer runs against the server that the environment names, or else an S3 server in the process.
func TestServer(t *testing.T) {
	t.Parallel()
	objecttest.Run(t, func(t *testing.T) object.Store { return objecttest.NewServer(t).Open(t, "some/prefix") })
}

func TestURLs(t *testing.T) {
	env := func(name string) string {
		return map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "hidden", "AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_KEY": "a2V5"}[name]
	}
	for url, want := range map[string]string{
		"s3://bucket/pre/fix/":    "s3://bucket/pre/fix",
		"s3://bucket":             "s3://bucket",
		"file:///a/b/":            "file:///a/b",
		"s3:///prefix":            "",
		"s3://user:secret%@b/x":   "", // no URL at all
		"s3://bucket/a b":         "",
		"s3://bucket/../x":        "",
		"s3://user:secret@b/x":    "",
		"s3://bucket/x?region=eu": "",
		"file://host/dir":         "",
		"file:///":                "",
		"gs://bucket/pre/fix/":    "gs://bucket/pre/fix",
		"gs://bucket":             "gs://bucket",
		"gs:///prefix":            "",
		"gs://bucket:80/x":        "",
		"s3://bucket/x?secret":    "",
		"gs://bucket/a//b":        "",
		"gs://user:secret@b/x":    "",
		"gs://bucket/x#secret":    "",
		"s3://b/x":                "",
		"s3://buck_et..a/x":       "",

		"bucket": "",
		"":       "",
	} {
		s, err := object.Open(url, env)
		if want == "" {
			if err == nil {
				t.Errorf("%q was opened", url)
			} else if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: the error has the password: %v", url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", url, err)
		} else if s.String() != want {
			t.Errorf("%q is %q, want %q", url, s, want)
		}
	}
	half := func(name string) string { return map[string]string{"AWS_ACCESS_KEY_ID": "a"}[name] }
	if _, err := object.Open("s3://bucket/x", half); err == nil {
		t.Error("half a credential was taken")
	}
	for _, endpoint := range []string{"ftp://user:secret@host", "http://user:secret@host/path", "http://user:secret@host", "user:secret@host:9000",
		"http://user:secret%@host", "//user:secret@host", "http://host/?token=secret", "http://host/#secret", "/user:secret@host", "secret@host"} {
		getenv := func(name string) string { return map[string]string{"AWS_ENDPOINT_URL": endpoint}[name] }
		if _, err := object.Open("s3://bucket/x", getenv); err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "AWS_ENDPOINT_URL") {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
	odd := func(name string) string { return map[string]string{"AWS_ENDPOINT_URL": "ftp://x"}[name] }
	if _, err := object.Open("s3://bucket/x", odd); err == nil {
		t.Error("an endpoint of ftp was taken")
	}
}

// TestAzure runs against a server in the process, which Azurite is compared with by TestServer (make test-azure).
func TestAzure(t *testing.T) {
	t.Parallel()
	objecttest.Run(t, func(t *testing.T) object.Store { return objecttest.NewAzure(t).Open(t, "some/prefix") })
}
