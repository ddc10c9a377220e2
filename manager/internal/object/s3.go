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
// If-Match of PUT.
type s3Store struct {
	core   *minio.Core
	bucket string
	prefix string
}

func openS3(u *url.URL, getenv func(string) string) (Store, error) {
	bucket := u.Host
	if bucket == "" {
		return nil, &URLError{u.String(), "the bucket is missing; " + forms}
	}
	if err := s3utils.CheckValidBucketName(bucket); err != nil { // every call would fail with this error
		return nil, &URLError{u.String(), err.Error()}
	}
	prefix, err := prefixOf(u)
	if err != nil {
		return nil, err
	}
	opts := &minio.Options{
		Secure: true, Region: getenv("AWS_REGION"), BucketLookup: minio.BucketLookupAuto,
		MaxRetries: 1, // the caller tries again, within its own time limit
		Transport:  transport(),
	}
	opts.Region = cmp.Or(opts.Region, "us-east-1")
	host := "s3.amazonaws.com"
	if endpoint := getenv("AWS_ENDPOINT_URL"); endpoint != "" {
		e, err := url.Parse(endpoint)
		if !isEndpoint(e, err) || strings.Trim(e.Path, "/") != "" {
			return nil, &URLError{u.String(), fmt.Sprintf("AWS_ENDPOINT_URL%s: must be http://HOST:PORT or https://HOST:PORT, without user, password and query", shown(e))}
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
		return nil, &URLError{u.String(), "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: must both be set, or neither"}
	}
	core, err := minio.NewCore(host, opts)
	if err != nil {
		return nil, &URLError{u.String(), err.Error()}
	}
	return &s3Store{core, bucket, prefix}, nil
}

func (s *s3Store) String() string {
	return strings.TrimSuffix("s3://"+s.bucket+"/"+s.prefix, "/")
}

func (s *s3Store) Create(ctx context.Context, name string, body []byte) (Version, error) {
	var opts minio.PutObjectOptions
	opts.SetMatchETagExcept("*")
	v, err := s.put(ctx, name, body, opts)
	if isStatus(err, http.StatusPreconditionFailed) {
		err = fmt.Errorf("%w: %s", ErrExists, name)
	}
	return v, err
}

func (s *s3Store) Replace(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	var opts minio.PutObjectOptions
	opts.SetMatchETag(string(old))
	v, err := s.put(ctx, name, body, opts)
	if isStatus(err, http.StatusPreconditionFailed) || isCode(err, minio.NoSuchKey) {
		err = fmt.Errorf("%w: %s", ErrChanged, name)
	}
	return v, err
}

func (s *s3Store) put(ctx context.Context, name string, body []byte, opts minio.PutObjectOptions) (Version, error) {
	if err := checkBody(name, body); err != nil {
		return "", err
	}
	opts.ContentType = "application/octet-stream"
	opts.DisableMultipart = true // one request: conditions hold for the whole
	info, err := s.core.Client.PutObject(ctx, s.bucket, s.prefix+name, bytes.NewReader(body), int64(len(body)), opts)
	if err != nil {
		return "", s.failed("write", name, err)
	}
	return Version(info.ETag), nil
}

func (s *s3Store) Get(ctx context.Context, name string) ([]byte, Version, error) {
	if err := checkName(name); err != nil {
		return nil, "", err
	}
	body, info, _, err := s.core.GetObject(ctx, s.bucket, s.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		if isCode(err, minio.NoSuchKey) {
			return nil, "", fmt.Errorf("%w: %s", ErrNotFound, name)
		}
		return nil, "", s.failed("read", name, err)
	}
	defer body.Close()
	if info.Size > MaxBytes {
		return nil, "", fmt.Errorf("%w: %s has %d bytes, allowed are %d", ErrTooLarge, name, info.Size, MaxBytes)
	}
	b, err := readBody(body, info.Size)
	if err != nil {
		return nil, "", s.failed("read", name, err)
	}
	return b, Version(info.ETag), nil
}

func (s *s3Store) List(ctx context.Context, prefix, after string) ([]Info, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the library's goroutine
	opts := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, MaxKeys: MaxList}
	if after != "" {
		opts.StartAfter = s.prefix + after
	}
	var infos []Info
	for o := range s.core.Client.ListObjects(ctx, s.bucket, opts) {
		if o.Err != nil {
			return nil, s.failed("list", prefix, o.Err)
		}
		name, ok := strings.CutPrefix(o.Key, s.prefix)
		if ok && name > after { // some servers know no start-after
			infos = append(infos, Info{name, o.Size, o.LastModified})
		}
		if len(infos) == MaxList {
			break
		}
	}
	return infos, ctx.Err()
}

func (s *s3Store) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := s.core.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{})
	if err != nil && !isCode(err, minio.NoSuchKey) {
		return s.failed("delete", name, err)
	}
	return nil
}

// failed names what failed. An error of the library shows neither keys nor
// signatures.
func (s *s3Store) failed(what, name string, err error) error {
	return fmt.Errorf("object: cannot %s %s/%s: %w", what, s, name, err)
}

func isStatus(err error, status int) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && r.StatusCode == status
}

func isCode(err error, code string) bool {
	var r minio.ErrorResponse
	return errors.As(err, &r) && r.Code == code
}
