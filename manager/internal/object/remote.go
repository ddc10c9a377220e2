package object

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// service is a bucket of object storage. Names have the store's prefix, and errors are not wrapped. Each call is one request,
// which is never sent twice (a listing may take several): only the caller knows whether an answer was lost.
type service interface {
	// put writes an object that must still have the version old, or must not exist if old is empty. The error is ErrChanged
	// if that is not so.
	put(ctx context.Context, name string, body []byte, old Version) (Version, error)
	// get begins to read an object. The error may be ErrNotFound.
	get(ctx context.Context, name string) (*content, error)
	// list is Store.List.
	list(ctx context.Context, prefix, after string) ([]Info, error)
	// delete removes an object. The error may be ErrNotFound.
	delete(ctx context.Context, name string) error
}

// content is an object that is being read.
type content struct {
	body    io.ReadCloser
	size    int64 // -1 when it is not known
	version Version
	check   func(body []byte) error // compares checksums; nil without one
}

// remote is a Store below a prefix of a bucket.
type remote struct {
	service
	url      string
	prefix   string // empty, or ending with a slash
	versions string // what the service calls a version
}

// opener opens the bucket of a name by its environment. It connects to nothing.
type opener func(bucket string, getenv func(string) string) (service, error)

// openRemote opens the bucket that a URL names. The URL's scheme may be short for scheme.
func openRemote(u *url.URL, scheme, bucket, versions string, open opener, getenv func(string) string) (Store, error) {
	if u.Host == "" {
		return nil, &URLError{u.String(), "the " + bucket + " is missing; " + forms}
	}
	prefix, err := prefixOf(&url.URL{Scheme: scheme, Host: u.Host, Path: u.Path})
	if err != nil {
		return nil, err
	}
	s, err := open(u.Host, getenv)
	if err != nil {
		return nil, &URLError{u.String(), err.Error()}
	}
	return &remote{s, strings.TrimSuffix(scheme+"://"+u.Host+"/"+prefix, "/"), prefix, versions}, nil
}

func (s *remote) String() string { return s.url }

// failed names what failed. The errors of services show neither keys nor signatures.
func (s *remote) failed(what, name string, err error) error {
	return fmt.Errorf("object: cannot %s %s/%s: %w", what, s, name, err)
}

func (s *remote) Create(ctx context.Context, name string, body []byte) (Version, error) {
	return s.write(ctx, name, body, "", ErrExists)
}

func (s *remote) Replace(ctx context.Context, name string, body []byte, old Version) (Version, error) {
	return s.write(ctx, name, body, cmp.Or(old, "none"), ErrChanged) // no object has that one, and the empty one would create
}

func (s *remote) write(ctx context.Context, name string, body []byte, old Version, refused error) (Version, error) {
	if err := checkBody(name, body); err != nil {
		return "", err
	}
	v, err := s.put(ctx, s.prefix+name, body, old)
	if errors.Is(err, ErrChanged) {
		return "", fmt.Errorf("%w: %s", refused, name)
	}
	if err == nil && v == "" {
		err = errors.New("the answer has no " + s.versions)
	}
	if err != nil {
		return "", s.failed("write", name, err)
	}
	return v, nil
}

func (s *remote) Get(ctx context.Context, name string) ([]byte, Version, error) {
	if err := checkName(name); err != nil {
		return nil, "", err
	}
	o, err := s.get(ctx, s.prefix+name)
	if errors.Is(err, ErrNotFound) {
		return nil, "", fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	if err != nil {
		return nil, "", s.failed("read", name, err)
	}
	defer o.body.Close()
	if o.size > MaxBytes {
		return nil, "", fmt.Errorf("%w: %s has %d bytes, allowed are %d", ErrTooLarge, name, o.size, MaxBytes)
	}
	b, err := readBody(o.body, o.size)
	if err == nil && o.version == "" {
		err = errors.New("the answer has no " + s.versions)
	}
	if err == nil && o.check != nil {
		err = o.check(b)
	}
	if err != nil {
		return nil, "", s.failed("read", name, err)
	}
	return b, o.version, nil
}

func (s *remote) List(ctx context.Context, prefix, after string) ([]Info, error) {
	infos, err := s.list(ctx, s.prefix+prefix, s.prefix+after)
	if err != nil {
		return nil, s.failed("list", prefix, err)
	}
	for i := range infos {
		infos[i].Name = strings.TrimPrefix(infos[i].Name, s.prefix)
	}
	return infos, nil
}

func (s *remote) Delete(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := s.delete(ctx, s.prefix+name); err != nil && !errors.Is(err, ErrNotFound) {
		return s.failed("delete", name, err)
	}
	return nil
}
