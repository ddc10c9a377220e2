package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// span passes on all outcomes of an origin that a peer holds of a span of the hybrid clock, in milliseconds.
func (p *Puller) span(ctx context.Context, s *state, origin string, from, to int64, take func([]ledger.FeedChange) error) error {
	q := url.Values{"origin": {origin}, "from_ms": {strconv.FormatInt(from, 10)}, "to_ms": {strconv.FormatInt(to, 10)}, "limit": {strconv.Itoa(pageChanges)}}
	for {
		body, status, _, err := p.call(ctx, s, pathChanges, q, 0)
		if err != nil {
			return err
		}
		f, err := pageOf(body, status, origin)
		if err != nil {
			return err
		}
		if err := take(f.Changes); err != nil || f.Cursor == "" {
			return err
		}
		q.Set("after", f.Cursor)
	}
}

// call asks a peer. wait is how long it may hold the call.
func (p *Puller) call(ctx context.Context, s *state, path string, q url.Values, wait time.Duration) (body []byte, status int, said string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(wait+pullPatience, func() { cancel(errors.New("the peer does not answer")) })
	defer silent.Stop()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.peer.URL+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, 0, "", err
	}
	if p.opts.Lists != nil {
		r.Header.Set(api.HeaderDataCentres, p.opts.Lists.Said())
	}
	p.tell(s, r)
	resp, err := p.opts.Network.Do(s.peer.Name, r)
	if err != nil {
		return nil, 0, "", errors.Join(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	silent.Reset(pullTime)
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	if err == nil && len(body) > maxPage {
		err = fmt.Errorf("the answer has more than %d bytes", maxPage)
	}
	if said = resp.Header.Get(api.HeaderDataCentres); len(said) > maxSaid {
		said = said[:maxSaid]
	}
	if err == nil && path == pathChanges {
		err = p.hear(ctx, s, resp.Header, resp.StatusCode)
	}
	return body, resp.StatusCode, said, err
}
