package config

import "testing"

func TestUnaryGRPCIsRead(t *testing.T) {
	c := mustParse(t, `{"mode": "body", "match": [{"path_prefix": "/p.Pay/", "grpc": "unary"}, {}]}`)
	if got := c.Route("POST", "/p.Pay/Do").GRPC; got != GRPCUnary {
		t.Errorf("got %v", got)
	}
	if got := c.Route("POST", "/x").GRPC; got != GRPCNone {
		t.Errorf("the default is %v", got)
	}
}

func TestUnaryGRPCMistakesAreRefused(t *testing.T) {
	const answers = `grpc: "unary" needs the body, grpc-status, grpc-message and content-type of answers; allowed: "none" when "response" leaves them out`
	for text, want := range map[string]string{
		`{"grpc": "stream"}`: `grpc: "stream"; allowed: "none", "unary"`,
		`{"grpc": "unary"}`:  `grpc: "unary" needs the whole message before the decision; allowed: "none" unless "mode" is "body"`,
		`{"grpc": "unary", "mode": "body", "response": {"body": "none"}}`:                                             answers,
		`{"grpc": "unary", "mode": "body", "response": {"drop_headers": ["grpc-status"]}}`:                            answers,
		`{"grpc": "unary", "mode": "body", "ledger": "upstream"}`:                                                     `grpc: "unary" needs a ledger that keeps the answer; allowed: "none" when "ledger" is "upstream"`,
		`{"mode": "body", "match": [{"mode": "headers", "key": {"header": "k"}, "path": "/x", "grpc": "unary"}, {}]}`: `match[0].grpc: "unary" needs the whole message before the decision; allowed: "none" unless "mode" is "body"`,
	} {
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
