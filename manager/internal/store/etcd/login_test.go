package etcd

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// slowLogin is a member whose login lasts until all calls have asked for one.
type slowLogin struct {
	clientv3.Auth
	calls         int32
	asked, logins atomic.Int32
}

func (a *slowLogin) Authenticate(context.Context, string, string) (*clientv3.AuthenticateResponse, error) {
	a.logins.Add(1)
	for a.asked.Load() < a.calls {
		runtime.Gosched()
	}
	return &clientv3.AuthenticateResponse{Token: "t"}, nil
}

func TestCallsShareALogin(t *testing.T) {
	member := &slowLogin{calls: 64}
	var auth clientv3.Auth = &logins{Auth: member, life: t.Context()}
	var wg sync.WaitGroup
	for range member.calls {
		wg.Go(func() {
			member.asked.Add(1)
			if r, err := auth.Authenticate(t.Context(), "me", "secret"); err != nil || r.Token != "t" {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	wg.Wait()
	if n := member.logins.Load(); n > member.calls/2 {
		t.Errorf("%d calls made %d logins", member.calls, n)
	}
}

// TestALoginOutlivesItsCaller: the call that began it may leave, and the others still get it.
func TestALoginOutlivesItsCaller(t *testing.T) {
	member := &slowLogin{calls: 2}
	l := &logins{Auth: member, life: t.Context()}
	ctx, leave := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, err := l.Authenticate(ctx, "me", "secret")
		first <- err
	}()
	for member.logins.Load() == 0 {
		runtime.Gosched()
	}
	leave()
	if err := <-first; err != context.Canceled {
		t.Errorf("the call that left: %v", err)
	}
	member.asked.Add(member.calls)
	if r, err := l.Authenticate(t.Context(), "me", "secret"); err != nil || r.Token != "t" {
		t.Errorf("%v, %v", r, err)
	}
}
