package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMistakesAreTold: one line on stderr that names the setting, its value and
// what is allowed, and exit code 2.
func TestMistakesAreTold(t *testing.T) {
	for _, c := range []struct {
		env  string // NAME=value
		args string
		want string
	}{
		{"", "serve --data-dir d --max-entries many", `oncegate serve: --max-entries "many": must be a whole number from 1 to 1000000000`},
		{"", "serve --data-dir d --max-entries 0", `oncegate serve: --max-entries "0": must be a whole number from 1 to 1000000000`},
		{"", "quarantine", `oncegate quarantine: a command is missing: must be begin, end or status`},
		{"", "quarantine stop", `oncegate quarantine: command "stop": must be begin, end or status`},
		{"", "quarantine begin --data-dir d", `oncegate quarantine: --for: begin needs it, and no other command has it`},
		{"", "quarantine status --data-dir d --for 1h", `oncegate quarantine: --for: begin needs it, and no other command has it`},
		{"", "quarantine status", `oncegate quarantine: --data-dir: is missing; the engine wal keeps its files there`},
		{"", "quarantine status --store memory", `oncegate quarantine: --store memory: is not restored, it forgets everything when its manager ends`},
		{"", "quarantine begin --for 1h --data-dir none", `oncegate quarantine: --data-dir "none": must be the directory of a manager with --store wal`},
		{"ONCEGATE_SCOPE_SHARE=75%", "serve --data-dir d", `oncegate serve: ONCEGATE_SCOPE_SHARE="75%": must be a number from 0 to 1`},
		{"", "serve --data-dir d --scope-share 75%", `oncegate serve: --scope-share "75%": must be a number from 0 to 1`},
		{"", "serve --data-dir d --pending-ttl-seconds -1", `oncegate serve: --pending-ttl-seconds "-1": must be a number of seconds from 0.001 to 31622400`},
		{"", "serve --data-dir d --pending-ttl-seconds NaN", `oncegate serve: --pending-ttl-seconds "NaN": must be a number of seconds from 0.001 to 31622400`},
		{"", "serve --data-dir d --store files", `oncegate serve: --store "files": must be one of etcd, memory, postgres, redis, sqlite, wal`},
		{"", "serve --data-dir d --log-level loud", `oncegate serve: --log-level "loud": must be one of debug, info, warn, error`},
		{"", "serve --data-dir d --listen nowhere", `oncegate serve: --listen "nowhere": must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH`},
		{"", "serve --data-dir d --admin nowhere", `oncegate serve: --admin "nowhere": must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH`},
		{"", "serve --data-dir d --listen 127.0.0.1:99999", `oncegate serve: --listen "127.0.0.1:99999": must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH`},
		{"", "serve --data-dir d --listen foo:bar", `oncegate serve: --listen "foo:bar": must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH`},
		{"", "serve --data-dir d --listen 127.0.0.1:-1", `oncegate serve: --listen "127.0.0.1:-1": must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH`},
		{"", "serve --data-dir d --admin 127.0.0.1:99999", `oncegate serve: --admin "127.0.0.1:99999": must be HOST:PORT, the port a service's name or from 0 to 65535, where 0 picks a free one; or unix:PATH`},
		{"", "serve --store redis --store-dsn nonsense", `oncegate serve: --store-dsn: must be a URL like redis://user:password@host:6379/0, or rediss:// for TLS; redis: invalid URL scheme: `},
		{"", "serve --store redis --store-dsn redis://u:secret/@h/0", `oncegate serve: --store-dsn: must be a URL like redis://user:password@host:6379/0, or rediss:// for TLS; it is none`},
		{"ONCEGATE_STORE_DSN=redis://h/x", "serve --store redis", `oncegate serve: ONCEGATE_STORE_DSN: must be a URL like redis://user:password@host:6379/0, or rediss:// for TLS; redis: invalid database number: "x"`},
		{"", "serve --store etcd --store-dsn http://u:secret@h/x", `oncegate serve: --store-dsn: must be addresses like http://a:2379,http://b:2379,http://c:2379?prefix=/oncegate, or https:// for TLS; address 1: must end after the port`},
		{"", "serve --store etcd --store-dsn http://h?prefix=x", `oncegate serve: --store-dsn: must be addresses like http://a:2379,http://b:2379,http://c:2379?prefix=/oncegate, or https:// for TLS; parameter prefix "x": must begin with a slash, and have 2 to 128 letters, digits, slashes and any of ._-`},
		{"ONCEGATE_STORE_DSN=redis://h", "serve --store memory", `oncegate serve: ONCEGATE_STORE_DSN: the engine memory connects to nothing`},
		{"", "serve --data-dir d --wait-for-pending=maybe", `oncegate serve: --wait-for-pending "maybe": must be true or false`},
		{"", "serve --data-dir d --admin-tls-cert c", `oncegate serve: --admin-tls-cert and --admin-tls-key: must be given together`},
		{"", "serve --data-dir d --admin-tls-cert c --admin-tls-key k", `oncegate serve: --admin-tls-cert "c": needs --admin`},
		{"", "serve --data-dir d --tls-cert c", `oncegate serve: --tls-cert and --tls-key: must be given together`},
		{"", "serve --data-dir d --max-body-memory-bytes 2097152", `oncegate serve: --max-body-memory-bytes 2097152: must be at least 4194304, twice the largest request, which --max-result-bytes 1048576 makes possible`},
		{"", "serve --data-dir d --client-roles-file=", `oncegate serve: --client-roles-file "": must be the name of a file; leave the flag out to go without`},
		{"", "serve --data-dir d --auth-token-file=", `oncegate serve: --auth-token-file "": must be the name of a file; leave the flag out to go without`},
		{"", "serve --data-dir d --tls-cert= --tls-key=", `oncegate serve: --tls-cert "": must be the name of a file; leave the flag out to go without`},
		{"", "serve --data-dir d --client-ca=", `oncegate serve: --client-ca "": must be the name of a file; leave the flag out to go without`},
		{"", "serve --data-dir d --client-ca c", `oncegate serve: --client-ca "c": needs --tls-cert and --tls-key`},
		{"", "serve", `oncegate serve: --data-dir: is missing; the engine wal keeps its files there`},
		{"", "serve --store memory --data-dir d", `oncegate serve: --data-dir "d": the engine memory keeps no files`},
		{"", "serve --store redis", `oncegate serve: --store-dsn: is missing; the engine redis connects to it`},
		{"", "serve --data-dir d --store-dsn secret", `oncegate serve: --store-dsn: the engine wal connects to nothing`},
		{"", "serve --data-dir d extra", `oncegate serve: unexpected argument "extra"`},
		{"", "serve --data-dir d --colour", `oncegate serve: flag provided but not defined: -colour, see oncegate serve --help`},
		{"IDEMPOTENCY_PENDING_TTL_SECONDS=soon", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_PENDING_TTL_SECONDS="soon": must be a number of seconds from 0.001 to 31622400`},
		{"IDEMPOTENCY_COMMITTED_TTL_SECONDS=-1", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_COMMITTED_TTL_SECONDS="-1": must be a number of seconds from 0.001 to 31622400`},
		{"IDEMPOTENCY_REJECTED_TTL_SECONDS=0", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_REJECTED_TTL_SECONDS="0": must be a number of seconds from 0.001 to 31622400`},
		{"IDEMPOTENCY_MAX_ENTRIES=1e5", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_MAX_ENTRIES="1e5": must be a whole number from 1 to 1000000000`},
		{"IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS=x", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS="x": must be a number of seconds from 0.001 to 86400`},
		{"IDEMPOTENCY_WAIT_FOR_PENDING=ja", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_WAIT_FOR_PENDING="ja": must be true or false`},
		{"IDEMPOTENCY_PENDING_WAIT_TIMEOUT=4000", "serve --data-dir d", `oncegate serve: IDEMPOTENCY_PENDING_WAIT_TIMEOUT="4000": must be a number of seconds from 0 to 3600`},
		{"", "serve --data-dir d --shard=", `oncegate serve: --shard "": must be 1 to 255 bytes of visible ASCII without a comma`},
		{"ONCEGATE_SHARD=a,b", "serve --data-dir d", `oncegate serve: ONCEGATE_SHARD="a,b": must be 1 to 255 bytes of visible ASCII without a comma`},
		{"", "serve --data-dir d --shard a --shards a,,b", `oncegate serve: --shards "a,,b": the name "" must be 1 to 255 bytes of visible ASCII without a comma`},
		{"", "serve --data-dir d --shard a --shards a,b,a", `oncegate serve: --shards "a,b,a": "a" is there twice; must be each name once`},
		{"", "serve --data-dir d --shards a,b", `oncegate serve: --shards: needs --shard, which of them this one is`},
		{"ONCEGATE_SHARDS=a,b", "serve --data-dir d", `oncegate serve: ONCEGATE_SHARDS: needs --shard, which of them this one is`},
		{"", "serve --data-dir d --shard-was a", `oncegate serve: --shard-was "a": needs --shard, the new name`},
		{"", "serve --data-dir d --shard a --shards-version 2", `oncegate serve: --shards-version 2: needs --shards`},
		{"", "serve --data-dir d --shard a --shards a --shards-version 0", `oncegate serve: --shards-version "0": must be a whole number from 1 to 4294967295`},
		{"", "sreve", `oncegate: unknown command "sreve", see oncegate help`},
		{"", "version x", `oncegate version: unexpected argument "x"`},
		{"", "wal", `oncegate wal: a command is missing: must be verify, dump, stats or repair`},
		{"", "wal mend", `oncegate wal: command "mend": must be verify, dump, stats or repair`},
		{"", "wal verify", `oncegate wal: --data-dir: is missing; must be the directory of a log`},
		{"", "wal dump --data-dir d x", `oncegate wal: unexpected argument "x"`},
	} {
		vars := make(map[string]string)
		if name, value, ok := strings.Cut(c.env, "="); ok {
			vars[name] = value
		}
		env, stdout, stderr := testEnv(vars)
		if code := Run(context.Background(), env, strings.Fields(c.args)); code != 2 {
			t.Errorf("%s %s: exit code %d, want 2", c.env, c.args, code)
		}
		if got := strings.TrimSuffix(stderr.String(), "\n"); got != c.want || stdout.Len() != 0 {
			t.Errorf("%s %s\n got %s%s\nwant %s", c.env, c.args, got, stdout, c.want)
		}
	}
}

// TestMistakesInPlacesAreTold: the same for settings that name a file, and
// before anything is logged.
func TestMistakesInPlacesAreTold(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, content := range map[string]string{"empty": "", "short": "short\n", "word": "# gates\nsecret-token-of-20-bytes gates\n"} {
		if err := os.WriteFile(path(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	selfSigned(t, path("cert"), path("key"), 1)
	selfSigned(t, path("othercert"), path("otherkey"), 2)
	for args, want := range map[string]string{
		"--data-dir %/empty":                        `--data-dir "%/empty": must be a directory, or the name of one to make`,
		"--data-dir %/empty/d":                      `--data-dir "%/empty/d": must be a directory, or the name of one to make; stat %/empty/d: not a directory`,
		"--data-dir %/d --addr-file %/none/a":       `--addr-file "%/none/a": must be the name of a file in a directory that exists; stat %/none: no such file or directory`,
		"--data-dir %/d --addr-file %":              `--addr-file "%": must be the name of a file, this is a directory`,
		"--data-dir %/d --auth-token-file %/none":   `--auth-token-file "%/none": must be a file of bearer tokens, one per line; token file: open %/none: no such file or directory`,
		"--data-dir %/d --auth-token-file %/empty":  `--auth-token-file "%/empty": must be a file of bearer tokens, one per line; token file %/empty: must hold 1 to 64 tokens, one per line`,
		"--data-dir %/d --auth-token-file %/short":  `--auth-token-file "%/short": must be a file of bearer tokens, one per line; token file %/short: line 1: must be a token of 16 to 4096 bytes`,
		"--data-dir %/d --auth-token-file %/word":   `--auth-token-file "%/word": must be a file of bearer tokens, one per line; token file %/word: line 2: must be a token of 16 to 4096 bytes without spaces, followed only by the words gate, submitter, worker, worker:FUNCTION, operator, peer, admin;`,
		"--data-dir %/d --client-roles-file %/word": `--client-roles-file "%/word": needs --client-ca`,
		"--data-dir %/d --tls-cert %/cert --tls-key %/key --client-ca %/cert --client-roles-file %/word": `--client-roles-file "%/word": must be a file of names of client certificates and what they may do, one per line; client roles file %/word: line 2: must be CN=NAME or SAN=NAME`,
		"--data-dir %/d --tls-cert %/none --tls-key %/key":                                               `--tls-cert "%/none", --tls-key "%/key": must be a certificate and its key in PEM form; TLS certificate: open %/none: no such file or directory`,
		"--data-dir %/d --tls-cert %/cert --tls-key %/otherkey":                                          `--tls-cert "%/cert", --tls-key "%/otherkey": must be a certificate and its key in PEM form; TLS certificate: tls: private key does not match public key`,
		"--data-dir %/d --tls-cert %/cert --tls-key %/key --client-ca %/none":                            `--client-ca "%/none": must be a file of certificates in PEM form; client CA: open %/none: no such file or directory`,
		"--data-dir %/d --tls-cert %/cert --tls-key %/key --client-ca %/empty":                           `--client-ca "%/empty": must be a file of certificates in PEM form; client CA %/empty: holds no certificate in PEM form`,
		"--store postgres --store-dsn nonsense":                                                          `--store-dsn: must be a URL like postgres://user:password@host:5432/database, or key=value pairs; `,
		"--store postgres --store-dsn postgres://u:secret@h:x/d":                                         `--store-dsn: must be a URL like postgres://user:password@host:5432/database, or key=value pairs; `,
		"--store postgres --store-dsn postgres://h/d?synchronous_commit=local":                           `--store-dsn: synchronous_commit "local": must be on or remote_apply`,
		"--store postgres --store-dsn postgres://h/d --store-require-sync-standbys -1":                   `--store-require-sync-standbys "-1": must be`,
		"--store redis --store-dsn redis://h --store-require-sync-standbys 1":                            `--store-require-sync-standbys 1: the engine redis has no standbys, must be 0; only postgres has`,
	} {
		env, stdout, stderr := testEnv(nil)
		code := Run(context.Background(), env, append([]string{"serve", "--listen", "127.0.0.1:0"}, strings.Fields(strings.ReplaceAll(args, "%", dir))...))
		got := strings.TrimSuffix(stderr.String(), "\n")
		if want = "oncegate serve: " + strings.ReplaceAll(want, "%", dir); code != 2 || !strings.HasPrefix(got, want) || strings.ContainsAny(got, "\n") || stdout.Len() != 0 {
			t.Errorf("%s: exit code %d\n got %s\nwant %s", args, code, got, want)
		}
		if strings.Contains(got, "secret") {
			t.Errorf("%s: a password was printed: %s", args, got)
		}
	}
	if _, err := os.Stat(path("d")); err == nil {
		t.Error("a manager that did not start made its directory")
	}
}

func TestHelpGoesToStandardOutput(t *testing.T) {
	for _, args := range []string{"help", "--help", "serve --help", "wal --help", "wal dump --help", "version"} {
		env, stdout, stderr := testEnv(nil)
		if code := Run(context.Background(), env, strings.Fields(args)); code != 0 || stdout.Len() == 0 || stderr.Len() != 0 {
			t.Errorf("%s: exit code %d, stderr %q", args, code, stderr)
		}
	}
	env, _, stderr := testEnv(nil)
	if code := Run(context.Background(), env, nil); code != 2 || !strings.Contains(stderr.String(), "usage: oncegate COMMAND") {
		t.Errorf("no command: %d %s", code, stderr)
	}
	env, stdout, _ := testEnv(nil)
	if code := Run(t.Context(), env, []string{"serve", "-h"}); code != 0 || !strings.Contains(stdout.String(), "[IDEMPOTENCY_MAX_ENTRIES]") {
		t.Errorf("serve -h: exit code %d, %s", code, stdout)
	}
}
