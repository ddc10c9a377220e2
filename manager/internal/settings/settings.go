// Package settings reads what `oncegate serve` is to do from flags, environment and defaults, and
// says what is wrong with it: one line that names the setting, its value and what is allowed.
package settings

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/feed"
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/jobs"
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/peers"
	"github.com/oncegate/oncegate/manager/internal/shard"
)

// Settings are what the flags of `oncegate serve` of the same names say. Help lists them with
// their meanings, bounds and defaults.
type Settings struct {
	DataDir, Listen, Admin, AddrFile string
	Store, StoreDSN                  string
	RequireSyncStandbys              int
	TokenFile                        string
	EncryptionKeyFile                string
	DecryptOnly                      bool
	TLSCert, TLSKey, ClientCA        string
	AdminTLSCert, AdminTLSKey        string
	ClientRoles                      string
	LogLevel                         slog.Level
	SocketMode                       fs.FileMode
	ShutdownTimeout, DrainDelay      time.Duration
	CacheBytes                       int64
	MaxLogs                          int
	Ledger                           ledger.Options
	Feed                             feed.Options
	Jobs                             jobs.Options
	Server                           httpd.Options
	Shard                            shard.Want
	Ship                             Ship
	Peers                            peers.Config
	CompareEvery                     time.Duration // of digests with each peer

	// Unknown are the variables of the environment that look like settings and are none.
	Unknown []string

	config         string
	waitForPending bool
	pendingWait    time.Duration
	fromEnv        map[string]string // flag name -> the variable that gave its value
	values         []Value
}

// setting is one flag and, when env is not empty, the variable that gives its
// value where the flag does not.
type setting struct {
	name, env, usage string
	boolean          bool
	repeated         bool // may be given several times
	parse            func(string) error
	initial          string // for the help text
	// initialOf, when set, is the default with an engine. The setting must come after the engine in the table.
	initialOf func(engine string) string
}

// configFlag is the flag that names the file with settings. The file cannot name another one.
const configFlag = "config"

// Parse reads flags, environment, the file --config and defaults, in this order of precedence. getenv is
// os.LookupEnv or stands for it; an empty variable counts as unset. A mistake is a UsageError that names the setting, its value and
// what is allowed. Parse returns flag.ErrHelp if the flags ask for help.
func Parse(getenv func(string) (string, bool), args []string) (*Settings, error) {
	s := &Settings{fromEnv: make(map[string]string)}
	all := s.all()
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	given := make(map[string]bool)
	values := make(map[string]string)
	var bad error // says it better than package flag
	for _, st := range all {
		set := func(value string) error {
			given[st.name] = true
			values[st.name] = strings.TrimSpace(values[st.name] + " " + value) // a flag that may be repeated
			err := st.parse(value)
			if err != nil {
				bad = Usagef("--%s %q: %v", st.name, value, err)
			}
			return err
		}
		if st.boolean {
			fs.BoolFunc(st.name, st.usage, set)
		} else {
			fs.Func(st.name, st.usage, set)
		}
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		if bad != nil {
			return nil, bad
		}
		return nil, Usagef("%v, see oncegate serve --help", err)
	}
	if fs.NArg() > 0 {
		if n := len(args) - fs.NArg() - 1; n >= 0 {
			name := strings.TrimLeft(args[n], "-")
			if slices.ContainsFunc(all, func(st setting) bool { return st.boolean && st.name == name }) {
				return nil, Usagef("unexpected argument %q: write --%s=%s", fs.Arg(0), name, fs.Arg(0))
			}
		}
		return nil, Usagef("unexpected argument %q", fs.Arg(0))
	}
	var file fileSettings
	if given[configFlag] {
		var err error
		if file, err = readFile(s.config); err != nil {
			return nil, err
		}
	}
	for _, st := range all {
		if given[st.name] {
			s.note(&st, values[st.name], "flag")
			continue
		}
		if value, ok := getenv(st.env); st.env != "" && ok && value != "" {
			if err := st.parse(value); err != nil {
				return nil, Usagef("%s=%q: %v", st.env, value, err)
			}
			s.fromEnv[st.name] = st.env
			s.note(&st, value, st.env)
			continue
		}
		if inFile := file[st.name]; len(inFile) > 0 {
			for _, value := range inFile {
				if err := st.parse(value); err != nil {
					return nil, Usagef("--config %q: %s %q: %v", s.config, st.name, value, err)
				}
			}
			s.note(&st, strings.Join(inFile, " "), "file")
			continue
		}
		initial := st.initial
		if st.initialOf != nil {
			initial = st.initialOf(s.Store)
		}
		s.note(&st, initial, "")
		if initial != "" {
			if err := st.parse(initial); err != nil {
				return nil, fmt.Errorf("default of --%s: %w", st.name, err)
			}
		}
	}
	if err := s.check(); err != nil {
		return s, err
	}
	return s, s.checkShip(getenv)
}

// all are the settings of "oncegate serve".
func (s *Settings) all() []setting {
	return slices.Concat(s.table(), s.shardTable(), s.jobsTable(), s.shipTable(), s.peersTable())
}

func (s *Settings) table() []setting {
	const seconds = "a number of seconds"
	return []setting{
		protection(configFlag, "file with settings (YAML): lines NAME: VALUE with the names of flags; flags and the environment win over it", &s.config),
		text("data-dir", "", "directory of the log (engine wal) or database file (engine sqlite)", "", &s.DataDir),
		text("listen", "", "address of the API, HOST:PORT or unix:PATH", "127.0.0.1:8090", &s.Listen),
		text("admin", "", "address of health, metrics, pprof and the web page /ui/, HOST:PORT or unix:PATH; all but the page ask for no credentials: keep it private; none when empty", "", &s.Admin),
		socketMode("socket-mode", "permissions of a listener's Unix socket, octal; without tokens only these keep local users out", "660", &s.SocketMode),
		text("addr-file", "", "write the addresses in use to this file, one \"name address\" per line", "", &s.AddrFile),
		{name: "store", usage: "engine that keeps the records: " + strings.Join(EngineNames(), ", "), initial: defaultEngine, parse: Choice(EngineNames(), &s.Store)},
		text("store-dsn", "ONCEGATE_STORE_DSN", "address of the server for the engine redis, postgres or etcd", "", &s.StoreDSN),
		number("store-require-sync-standbys", "", "synchronous standbys that the Postgres server must have connected; below that /readyz and all calls are 503 (engine postgres)", 0, 100, "0", &s.RequireSyncStandbys),
		protection("auth-token-file", "file with bearer tokens, one per line, of which callers then need one; words after a token say what it may do ("+httpd.RoleWords()+"), without words everything but what an administrator does; read again when it changes", &s.TokenFile),
		protection("encryption-key-file", "file with keys, a line ID:BASE64 of 32 bytes each; stored answers, payloads and log entries are encrypted under the last one", &s.EncryptionKeyFile),
		boolean("encryption-decrypt-only", "", "use the keys to read only, and store in plain; a step on the way to encryption for managers that share redis, postgres or etcd", "false", &s.DecryptOnly),
		protection("tls-cert", "certificate of the API's listener (PEM); read again when it changes, as is its key", &s.TLSCert),
		protection("tls-key", "key of that certificate (PEM)", &s.TLSKey),
		protection("admin-tls-cert", "certificate of the listener --admin (PEM), which may be that of --tls-cert; read again when it changes, as is its key", &s.AdminTLSCert),
		protection("admin-tls-key", "key of that certificate (PEM)", &s.AdminTLSKey),
		protection("client-ca", "CA whose client certificates are required (PEM)", &s.ClientCA),
		protection("client-roles-file", "file with lines CN=NAME WORD... or SAN=NAME WORD..., which say what client certificates may do; needs --client-ca; without it every certificate may do everything; read again when it changes", &s.ClientRoles),
		level("log-level", "", "least level that is logged", "info", &s.LogLevel),
		duration("shutdown-timeout-seconds", "", seconds+" that requests get to finish at shutdown", 0, 3600, "10", &s.ShutdownTimeout),
		duration("drain-delay-seconds", "", seconds+" between /readyz turning false and the shutdown", 0, 3600, "0", &s.DrainDelay),
		number("max-logs", "", "logs that may be made; 0 keeps none. With the engine wal each takes 16 to 32 MiB of disk at least", 0, 1024, "64", &s.MaxLogs),
		number("cache-bytes", "", "memory for records with the engine wal, which has them on disk: half for what was read, the rest for changes that are not in the state on disk yet. Besides, each record takes 2 bytes", 1<<20, 1<<40, "268435456", &s.CacheBytes),

		duration("pending-ttl-seconds", "IDEMPOTENCY_PENDING_TTL_SECONDS", seconds+" that a reservation holds", 0.001, MaxSeconds, "60", &s.Ledger.PendingTTL),
		duration("committed-ttl-seconds", "IDEMPOTENCY_COMMITTED_TTL_SECONDS", seconds+" that a committed answer is remembered", 0.001, MaxSeconds, "300", &s.Ledger.CommittedTTL),
		duration("rejected-ttl-seconds", "IDEMPOTENCY_REJECTED_TTL_SECONDS", seconds+" that a rejection is remembered", 0.001, MaxSeconds, "60", &s.Ledger.RejectedTTL),
		remembered("unknown-ttl-seconds", "ONCEGATE_UNKNOWN_TTL_SECONDS", seconds+" that a key stays blocked after its reservation ran out without an outcome; 0: it is free immediately (default that of --committed-ttl-seconds)", &s.Ledger.UnknownTTL),
		number("max-entries", "IDEMPOTENCY_MAX_ENTRIES", "entries in the window; by default as many as fit into --max-bytes at 512 bytes each", 1, 1_000_000_000, "", &s.Ledger.MaxEntries),
		room("max-bytes", "ONCEGATE_MAX_BYTES", "bytes of all entries, on disk with the engines wal and sqlite and in memory with the engine memory; other engines have only --max-entries", 1<<20, 1<<44, &s.Ledger.MaxBytes),
		fraction("scope-share", "ONCEGATE_SCOPE_SHARE", "largest part of the window for one scope; 0 for no limit", "0.75", &s.Ledger.ScopeShare),
		number("max-result-bytes", "", "largest recorded answer", 1024, ledger.MaxResultLimit, "1048576", &s.Ledger.MaxResultBytes),
		duration("cleanup-interval-seconds", "IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS", seconds+" between two sweeps of expired entries", 0.001, 86400, "10", &s.Ledger.CleanupInterval),
		boolean("wait-for-pending", "IDEMPOTENCY_WAIT_FOR_PENDING", "hold a reserve while another attempt is pending", "true", &s.waitForPending),
		duration("pending-wait-timeout-seconds", "IDEMPOTENCY_PENDING_WAIT_TIMEOUT", seconds+" that a reserve is held at most", 0, 3600, "30", &s.pendingWait),
		number("max-waiters", "", "most reserves that wait at the same time", 1, 1_000_000, "10000", &s.Ledger.MaxWaiters),

		number("max-header-bytes", "", "largest headers of a request", 1024, 1<<20, "16384", &s.Server.MaxHeaderBytes),
		number("max-body-memory-bytes", "", "memory of the bodies of all requests that arrive or are at work; more wait for a second and get 503. At least twice the largest request", 2<<20, 1<<44, "536870912", &s.Server.MaxBodyMemory),
		number("max-in-flight", "", "most requests at work at the same time; held ones do not count", 1, 1_000_000, "4096", &s.Server.MaxInFlight),
		number("max-connections", "", "most open connections", 1, 1_000_000, "16384", &s.Server.MaxConnections),
		duration("read-timeout-seconds", "", seconds+" that a client has to send a request", 0.001, 3600, "10", &s.Server.ReadTimeout),
		duration("write-timeout-seconds", "", seconds+" that a client has to take each 64 KiB of an answer", 0.001, 3600, "10", &s.Server.WriteTimeout),
		duration("idle-timeout-seconds", "", seconds+" that a connection may be idle", 0.001, 86400, "120", &s.Server.IdleTimeout),
		duration("work-timeout-seconds", "", seconds+" that the work of one request may take", 0.001, 3600, "10", &s.Server.WorkTimeout),
	}
}

// protection names a file without which the API is less protected. A name that
// is empty, for want of a variable of the shell perhaps, must not turn that off.
func protection(name, usage string, to *string) setting {
	return setting{name: name, usage: usage, parse: func(v string) error {
		if v == "" {
			return errors.New("must be the name of a file; leave the flag out to go without")
		}
		*to = v
		return nil
	}}
}

func text(name, env, usage, initial string, to *string) setting {
	return setting{name: name, env: env, usage: usage, initial: initial, parse: func(v string) error {
		*to = v
		return nil
	}}
}

func level(name, env, usage, initial string, to *slog.Level) setting {
	return setting{name: name, env: env, usage: usage + ": debug, info, warn, error", initial: initial, parse: func(v string) error {
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			if strings.EqualFold(v, l.String()) {
				*to = l
				return nil
			}
		}
		return errors.New("must be one of debug, info, warn, error")
	}}
}

func boolean(name, env, usage, initial string, to *bool) setting {
	return setting{name: name, env: env, usage: usage, initial: initial, boolean: true, parse: func(v string) error {
		switch strings.ToLower(v) {
		case "true", "1":
			*to = true
		case "false", "0":
			*to = false
		default:
			return errors.New("must be true or false")
		}
		return nil
	}}
}

func number[T int | int64](name, env, usage string, least, most int64, initial string, to *T) setting {
	return setting{name: name, env: env, usage: usage, initial: initial, parse: Number(least, most, to)}
}

// room is a number of bytes, by default as many as the engine has room for.
func room(name, env, usage string, least, most int64, to *int64) setting {
	s := number(name, env, fmt.Sprintf("%s (default %d with wal and sqlite, else %d)", usage, DiskRoom, MemoryRoom), least, most, "", to)
	s.initialOf = func(store string) string {
		if engines[store].onDisk {
			return strconv.FormatInt(DiskRoom, 10)
		}
		return strconv.FormatInt(MemoryRoom, 10)
	}
	return s
}

func fraction(name, env, usage, initial string, to *float64) setting {
	return setting{name: name, env: env, usage: usage, initial: initial, parse: func(v string) error {
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			return errors.New("must be a number from 0 to 1")
		}
		*to = f
		return nil
	}}
}

func duration(name, env, usage string, least, most float64, initial string, to *time.Duration) setting {
	return setting{name: name, env: env, usage: usage, initial: initial, parse: Seconds(least, most, to)}
}

// remembered is a duration that may be 0, which then means not at all, and that has
// another default than a number.
func remembered(name, env, usage string, to *time.Duration) setting {
	s := duration(name, env, usage, 0, MaxSeconds, "", to)
	return setting{name: name, env: env, usage: usage, parse: func(v string) error {
		err := s.parse(v)
		if err == nil && *to < time.Millisecond {
			*to = api.NoUnknown
		}
		return err
	}}
}

// Help prints all flags of `oncegate serve`.
func Help(w io.Writer) {
	all := new(Settings).all()
	fmt.Fprintln(w, "usage: oncegate serve [flags]; flags win over the environment, and that over the file --config")
	sort.SliceStable(all, func(i, j int) bool { return all[i].name < all[j].name })
	for _, s := range all {
		fmt.Fprintf(w, "  --%s\n        %s", s.name, s.usage)
		if s.initial != "" {
			fmt.Fprintf(w, " (default %s)", s.initial)
		}
		if s.env != "" {
			fmt.Fprintf(w, " [%s]", s.env)
		}
		fmt.Fprintln(w)
	}
}
