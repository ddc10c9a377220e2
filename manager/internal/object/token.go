package object

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// tokenTimeout bounds one request for a token.
const tokenTimeout = time.Minute

// tokens are those of a store.
type tokens struct {
	source oauth2.TokenSource
	flight singleflight.Group
}

// get waits for a token no longer than ctx allows. Requests at the same time share one.
func (t *tokens) get(ctx context.Context) (*oauth2.Token, error) {
	got := t.flight.DoChan("", func() (any, error) { return t.source.Token() })
	select {
	case r := <-got:
		if r.Err != nil {
			return nil, tokenError(r.Err)
		}
		return r.Val.(*oauth2.Token), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// tokenError is an error of a token source in one short line. Of an OAuth answer it shows only the standard's fields:
// the rest may be a whole page, or repeat the request with its secrets.
func tokenError(err error) error {
	text := err.Error()
	var r *oauth2.RetrieveError
	if errors.As(err, &r) {
		var says struct {
			Error       string
			Description string `json:"error_description"`
		}
		_ = json.Unmarshal(r.Body, &says) // else they stay empty
		text = fmt.Sprintf("%s %s %s", r.Response.Status, cmp.Or(r.ErrorCode, says.Error), cmp.Or(r.ErrorDescription, says.Description))
	}
	text = oneLine(text)
	return errors.New(text[:min(len(text), maxErrorText)])
}
