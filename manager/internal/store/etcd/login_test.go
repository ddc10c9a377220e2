package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/oncegate/oncegate/manager/internal/batch"
)

// slowLogin is a member that takes a tenth of a second for a login. In a bubble that passes when all calls wait.
type slowLogin struct {
	clientv3.Auth
	logins atomic.Int32
}

func (a *slowLogin) Authenticate(context.Context, string, string) (*clientv3.AuthenticateResponse, error) {
	a.logins.Add(1)
	time.Sleep(100 * time.Millisecond)
	return &clientv3.AuthenticateResponse{Token: "t"}, nil
}

func TestCallsShareALogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		member := &slowLogin{}
		var auth clientv3.Auth = &logins{Auth: member, life: batch.NewLife(t.Context()), within: patience}
		const calls = 64
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				if r, err := auth.Authenticate(t.Context(), "me", "secret"); err != nil || r.Token != "t" {
					t.Errorf("%v, %v", r, err)
				}
			})
		}
		wg.Wait()
		// Calls that came while the first login was under way share the second.
		if n := member.logins.Load(); n > 2 {
			t.Errorf("%d calls made %d logins", calls, n)
		}
	})
}

// TestALoginOutlivesItsCaller: the call that began it may leave, and the others still get it.
func TestALoginOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		member := &slowLogin{}
		l := &logins{Auth: member, life: batch.NewLife(t.Context()), within: patience}
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error)
		go func() {
			_, err := l.Authenticate(ctx, "me", "secret")
			first <- err
		}()
		synctest.Wait()
		if n := member.logins.Load(); n != 1 {
			t.Fatalf("%d logins are under way", n)
		}
		leave()
		if err := <-first; err != context.Canceled {
			t.Errorf("the call that left: %v", err)
		}
		if r, err := l.Authenticate(t.Context(), "me", "secret"); err != nil || r.Token != "t" {
			t.Errorf("%v, %v", r, err)
		}
	})
}
