// Package dsn checks the address of a Redis server in a setting.
package dsn

import (
	"errors"
	"net/url"

	goredis "github.com/redis/go-redis/v9"
)

// Check returns why an address is not like "redis://user:password@host:6379/0" or, for TLS, "rediss://...". The error
// has no password.
func Check(dsn string) error {
	_, err := goredis.ParseURL(dsn)
	var malformed *url.Error // quotes the URL, or what it takes for the port
	if errors.As(err, &malformed) {
		return errors.New("it is none")
	}
	return err
}
