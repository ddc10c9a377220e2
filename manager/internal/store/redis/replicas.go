package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/oncegate/oncegate/manager/internal/store"
	"github.com/oncegate/oncegate/manager/internal/store/internal/remote"
)

// replicaWait bounds how long a call waits for replicas. It is less than the time after which the client library takes
// a connection for broken.
const replicaWait = 2 * time.Second

// wait is the command that waits until the replicas have all that its connection wrote: on their disks, and on that of
// the server, where the server has WAITAOF, else in their memory.
func (set *settings) wait(ctx context.Context) *goredis.Cmd {
	if !set.waitAOF {
		return goredis.NewCmd(ctx, "WAIT", set.replicas(), replicaWait.Milliseconds())
	}
	local := 0
	if set.appendonly == "yes" {
		local = 1
	}
	return goredis.NewCmd(ctx, "WAITAOF", local, set.replicas(), replicaWait.Milliseconds())
}

// confirmed returns an error unless enough replicas confirmed. err is that of the command's pipeline.
func (set *settings) confirmed(wait *goredis.Cmd, err error) error {
	if err != nil {
		return unavailable(err)
	}
	have, local := int64(0), int64(1)
	switch v := wait.Val().(type) {
	case int64:
		have = v
	case []any:
		if len(v) == 2 {
			local, _ = v[0].(int64)
			have, _ = v[1].(int64)
		}
	}
	if have < int64(set.replicas()) || set.appendonly == "yes" && local < 1 {
		return fmt.Errorf("%w: redis: %d replicas confirmed in time, min-replicas-to-write is %s", store.ErrUnavailable, have, set.minReplicas)
	}
	return nil
}

// era names the time of one server as the primary, or as a replica of one. A server that becomes the primary gives
// itself a new replication id, so no two eras of primaries have the same name.
type era string

// eraOf reads the answer to INFO replication. It returns "" if that does not say.
func eraOf(info *goredis.StringCmd) era {
	var role, id string
	for line := range strings.Lines(info.Val()) {
		if v, ok := strings.CutPrefix(line, "role:"); ok {
			role = strings.TrimSpace(v)
		}
		if v, ok := strings.CutPrefix(line, "master_replid:"); ok {
			id = strings.TrimSpace(v)
		}
	}
	if role == "" || id == "" {
		return ""
	}
	return era(role + " " + id)
}

func (e era) replica() bool { return strings.HasPrefix(string(e), "slave ") }

// proof says that replicas of a server confirmed what it had in an era.
type proof struct {
	era      era
	replicas int
}

// await runs write, if any, and waits for the replicas on the same connection. The era is read after that: if it is the
// one that was read before a call, no other era was between the two.
func (set *settings) await(ctx context.Context, c conn, write func(goredis.Pipeliner)) (proof, error) {
	var wait *goredis.Cmd
	var info *goredis.StringCmd
	_, err := c.Pipelined(ctx, func(p goredis.Pipeliner) error {
		if write != nil {
			write(p)
		}
		wait = set.wait(ctx)
		_ = p.Process(ctx, wait)
		info = p.Info(ctx, "replication")
		return nil
	})
	if err := set.confirmed(wait, err); err != nil {
		return proof{}, err
	}
	return proof{era: eraOf(info), replicas: set.replicas()}, nil
}

// accept returns an error if the proof is of another server than the transaction, of another era of the same server, or
// of too few replicas.
func (t *tx) accept(p proof) error {
	if t.era == "" || p.era != t.era || p.replicas < t.set.replicas() {
		return fmt.Errorf("%w: redis: another server replaced it before the replicas confirmed", store.ErrUnavailable)
	}
	return nil
}

// proven returns err, the outcome of a transaction, once the replicas have what it read.
func (s *Store) proven(ctx context.Context, t *tx, err error) error {
	err = s.prove(ctx, t, err)
	if t == nil || !t.sent {
		err = remote.Unreached(err)
	}
	return err
}

// prove does the work of proven. A transaction that wrote has waited for its replicas already.
func (s *Store) prove(ctx context.Context, t *tx, err error) error {
	if t == nil || t.set.replicas() == 0 || t.proven || t.Err != nil || t.Reads() == 0 || errors.Is(err, goredis.TxFailedErr) {
		return err
	}
	p, perr := s.proofs.Join(ctx, s.life, 2*replicaWait, func(ctx context.Context) (proof, error) {
		return s.guard.set.Load().await(ctx, s.rdb, func(p goredis.Pipeliner) {
			p.Set(ctx, s.ns+"proof", "", 0) // WAIT and WAITAOF wait for what their own connection wrote
		})
	})
	if perr == nil {
		perr = t.accept(p)
	}
	if perr != nil {
		return perr
	}
	return err
}
