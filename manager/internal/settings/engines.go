package settings

import (
	"maps"
	"slices"
)

// engine says which settings an engine needs.
type engine struct {
	needsDir, needsDSN bool
	onDisk             bool // records take the disk of this machine
	checkDSN           func(*Settings) error
}

const defaultEngine = "wal"

// Defaults of --max-bytes and --job-max-bytes: DiskRoom with engines that keep records on the disk of this machine, and
// else MemoryRoom.
const (
	DiskRoom   = 16 << 30
	MemoryRoom = 512 << 20
)

// engines by the name under which users select them.
var engines = map[string]engine{
	"wal":      {needsDir: true, onDisk: true},
	"memory":   {},
	"sqlite":   {needsDir: true, onDisk: true},
	"redis":    {needsDSN: true, checkDSN: (*Settings).checkRedisDSN},
	"postgres": {needsDSN: true, checkDSN: (*Settings).checkPostgresDSN},
	"etcd":     {needsDSN: true, checkDSN: (*Settings).checkEtcdDSN},
}

// EngineNames are the values of --store, sorted.
func EngineNames() []string { return slices.Sorted(maps.Keys(engines)) }

// checkEngine reports whether an engine gets what it needs and nothing that it
// would silently ignore.
func (s *Settings) checkEngine() error {
	e := engines[s.Store]
	switch {
	case e.needsDir && s.DataDir == "":
		return Usagef("--data-dir: is missing; the engine %s keeps its files there", s.Store)
	case !e.needsDir && s.DataDir != "":
		return Usagef("--data-dir %q: the engine %s keeps no files", s.DataDir, s.Store)
	case e.needsDSN && s.StoreDSN == "":
		return Usagef("--store-dsn: is missing; the engine %s connects to it", s.Store)
	case !e.needsDSN && s.StoreDSN != "":
		return Usagef("%s: the engine %s connects to nothing", s.named("store-dsn"), s.Store)
	case s.RequireSyncStandbys > 0 && s.Store != "postgres":
		return Usagef("--store-require-sync-standbys %d: the engine %s has no standbys, must be 0; only postgres has", s.RequireSyncStandbys, s.Store)
	case s.DecryptOnly && s.EncryptionKeyFile == "":
		return Usagef("--encryption-decrypt-only: needs --encryption-key-file")
	case s.DecryptOnly && !e.needsDSN:
		return Usagef("--encryption-decrypt-only: the engine %s has one manager, which needs no such step", s.Store)
	case e.checkDSN != nil:
		return e.checkDSN(s)
	}
	return nil
}
