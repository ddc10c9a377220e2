package object

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// s3Store speaks the protocol of S3. Conditions are the headers If-None-Match and
// If-Match of PUT. The library's errors show neither keys nor signatures.
type s3Store struct {
	core   *minio.Core
	bucket string
}

func openS3(bucket string, getenv func(string) string) (service, error) {
	if err := s3utils.CheckValidBucketName(bucket); err != nil { // every call would fail with this error
		return nil, err
	}
	opts := &minio.Options{
		Secure: true, Region: cmp.Or(getenv("AWS_REGION"), "us-east-1"), BucketLookup: minio.BucketLookupAuto,
		MaxRetries: 1, // the caller tries again, within its own time limit
		Transport:  transport(),
	}
	host := "s3.amazonaws.com"
	if endpoint := getenv("AWS_ENDPOINT_URL"); endpoint != "" {
		e, err := url.Parse(endpoint)
		if !isEndpoint(e, err) || strings.Trim(e.Path, "/") != "" {
			return nil, fmt.Errorf("AWS_ENDPOINT_URL%s: must be http://HOST:PORT or https://HOST:PORT, without user, password and query", shown(e))
		}
		host, opts.Secure, opts.BucketLookup = e.Host, e.Scheme == "https", minio.BucketLookupPath
	}
	id, secret := getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY")
	switch {
	case id != "" && secret != "":
		opts.Creds = credentials.NewStaticV4(id, secret, getenv("AWS_SESSION_TOKEN"))
	case id == "" && secret == "":
		opts.Creds = credentials.NewIAM("")
	default:
		return nil, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: must both be set, or neither")
	}
	core, err := minio.NewCore(host, opts)
	return &s3Store{core, bucket}, err
}

func (s *s3Store) put(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	opts := minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableMultipart: true, // one request: conditions hold for the whole
	}
	if old == "" {
		opts.SetMatchETagExcept("*")
	} else {
		opts.SetMatchETag(string(old))
	}
	info, err := s.core.Client.PutObject(ctx, s.bucket, name, bytes.NewReader(body), int64(len(body)), opts)
	var r minio.ErrorResponse
	if errors.As(err, &r) && r.StatusCode == http.StatusPreconditionFailed || old != "" && isNoKey(err) {
		err = ErrChanged
	}
	return Version(info.ETag), err
}

func (s *s3Store) get(ctx context.Context, name string) (*content, error) {
	body, info, _, err := s.core.GetObject(ctx, s.bucket, name, minio.GetObjectOptions{})
	if isNoKey(err) {
		err = ErrNotFound
	}
	return &content{body: body, size: info.Size, version: Version(info.ETag)}, err
}

func (s *s3Store) list(ctx context.Context, prefix, after string) ([]Info, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the library's goroutine
	opts := minio.ListObjectsOptions{Prefix: prefix, Recursive: true, MaxKeys: MaxList, StartAfter: after}
	var infos []Info
	for o := range s.core.Client.ListObjects(ctx, s.bucket, opts) {
		if o.Err != nil {
			return nil, o.Err
		}
		if o.Key > after { // some servers know no start-after
			infos = append(infos, Info{o.Key, o.Size, o.LastModified})
		}
		if len(infos) == MaxList {
			break
		}
	}
	return infos, ctx.Err()
}

func (s *s3Store) delete(ctx context.Context, name string) error {
	err := s.core.RemoveObject(ctx, s.bucket, name, minio.RemoveObjectOptions{})
	if isNoKey(err) {
		err = ErrNotFound
	}
	return err
}

func isNoKey(err error) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && r.Code == minio.NoSuchKey
}
