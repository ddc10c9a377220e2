package settings

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/oncegate/oncegate/manager/api"
)

// shardTable are the settings that say which shard a ledger is.
func (s *Settings) shardTable() []setting {
	name := func(flag, env, usage string, to *string) setting {
		return setting{name: flag, env: env, usage: usage, parse: func(v string) error {
			*to = v
			return checkShard(v)
		}}
	}
	return []setting{
		name("shard", "ONCEGATE_SHARD", "name of the ledger among the shards that gates choose from (manager.shards); calls that mean another one are refused. It is kept with the data, which cannot be another shard then. None: calls for any are taken", &s.Shard.Name),
		name("shard-was", "ONCEGATE_SHARD_WAS", "name that the data had so far, to rename them to --shard", &s.Shard.Was),
		{name: "shards", env: "ONCEGATE_SHARDS", usage: "names of all shards, with commas between them: new keys that another one of them owns are refused. It is kept with the data; see docs/scale.md before you change it", parse: s.parseShards},
		{name: "shards-version", env: "ONCEGATE_SHARDS_VERSION", usage: "version of that list, above that of every list before; only needed to go back to an earlier list", parse: func(v string) error {
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil || n == 0 {
				return errors.New("must be a whole number from 1 to 4294967295")
			}
			s.Shard.Version = n
			return nil
		}},
	}
}

// checkShard looks at one name.
func checkShard(v string) error {
	if !api.Visible(v, 1, api.MaxShardBytes) || strings.Contains(v, ",") {
		return fmt.Errorf("must be 1 to %d bytes of visible ASCII without a comma", api.MaxShardBytes)
	}
	return nil
}

func (s *Settings) parseShards(v string) error {
	names := strings.Split(v, ",")
	seen := make(map[string]bool)
	for _, name := range names {
		if err := checkShard(name); err != nil {
			return fmt.Errorf("the name %q %w", name, err)
		}
		if seen[name] {
			return fmt.Errorf("%q is there twice; must be each name once", name)
		}
		seen[name] = true
	}
	if len(names) > api.MaxShards {
		return fmt.Errorf("has %d names; must be 1 to %d", len(names), api.MaxShards)
	}
	s.Shard.Shards = names
	return nil
}

// checkShards looks at what one of these settings alone cannot tell.
func (s *Settings) checkShards() error {
	switch w := &s.Shard; {
	case w.Was != "" && w.Name == "":
		return Usagef("%s %q: needs --shard, the new name", s.named("shard-was"), w.Was)
	case w.Shards != nil && w.Name == "":
		return Usagef("%s: needs --shard, which of them this one is", s.named("shards"))
	case w.Version != 0 && w.Shards == nil:
		return Usagef("%s %d: needs --shards", s.named("shards-version"), w.Version)
	}
	return nil
}
