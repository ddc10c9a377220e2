package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/batch"
	"github.com/oncegate/oncegate/manager/internal/store/internal/calls"
)

// logins lets calls share a login. After the restart of a member all of them find at the same time that their token is
// not valid any more, and a member takes a tenth of a second of its processor for each password.
type logins struct {
	clientv3.Auth
	life   *batch.Life   // ends the login under way
	within time.Duration // bounds a login
	round  calls.Round[*clientv3.AuthenticateResponse]
}

// Authenticate implements clientv3.Auth for a single user. The login that it returns began after the call.
func (l *logins) Authenticate(ctx context.Context, name, password string) (*clientv3.AuthenticateResponse, error) {
	return l.round.Join(ctx, l.life, l.within, func(ctx context.Context) (*clientv3.AuthenticateResponse, error) {
		return l.Auth.Authenticate(ctx, name, password)
	})
}
