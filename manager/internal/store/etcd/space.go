package etcd

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/store"
)

// spaceWithin bounds the question to the members.
const spaceWithin = 2 * time.Second

// space asks all members at the same time. A member that has lost the majority knows no leader.
func (s *Store) space(ctx context.Context) (all store.Space) {
	ctx, cancel := context.WithTimeout(ctx, spaceWithin)
	defer cancel()
	endpoints := s.c.Endpoints()
	answers := make(chan *clientv3.StatusResponse, len(endpoints))
	for _, e := range endpoints {
		go func() {
			answer, err := s.c.Status(ctx, e)
			if err != nil {
				answer = nil
			}
			answers <- answer
		}()
	}
	for range endpoints {
		answer := <-answers
		if answer == nil {
			continue
		}
		all.Majority = all.Majority || answer.Leader != 0
		all.Bytes, all.Quota = max(all.Bytes, answer.DbSize), max(all.Quota, answer.DbSizeQuota)
		for _, e := range answer.Errors {
			all.Full = all.Full || strings.Contains(e, "NOSPACE")
		}
	}
	return all
}
