package sdk

import "bytes"

// variable returns the value of a variable in an environment: NAME=VALUE for each, each ended by a zero byte.
func variable(environment []byte, name string) (value string, ok bool) {
	for len(environment) > 0 {
		one, rest, _ := bytes.Cut(environment, []byte{0})
		if n, v, found := bytes.Cut(one, []byte{'='}); found && string(n) == name {
			return string(v), true
		}
		environment = rest
	}
	return "", false
}
