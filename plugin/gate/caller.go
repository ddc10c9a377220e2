package gate

import (
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/request"
)

// Callers that the scope does not tell apart.

// ambiguous returns the credential that the current request has in place of those that its scope
// names; empty: the scope tells its caller apart, or the request has no caller.
func (s *Stream) ambiguous(headers request.Headers) string {
	name, ambiguous := request.Ambiguous(s.route, headers)
	if !ambiguous || name != "" {
		return name
	}
	if mtls, ok := s.plugin.host.Property("connection", "mtls"); ok && len(mtls) > 0 && mtls[0] != 0 {
		return "a client certificate"
	}
	return ""
}

// refuseAmbiguous refuses a request whose key may be that of another caller.
func (s *Stream) refuseAmbiguous(credential string) verdict {
	return s.invalid(&api.Problem{
		Status: 400,
		Code:   api.CodeScopeAmbiguous,
		Title:  "The scope of the idempotency key does not tell this caller apart",
		Detail: "The request was not executed. It has " + credential + ", but none of the headers that the route's scope names.",
	})
}

// logScopes names the routes where all callers share their keys.
func (p *Plugin) logScopes() {
	if names := p.config.OneScope(); len(names) > 0 {
		p.host.Log(LevelInfo, "oncegate: the scope is the same for all callers in "+strings.Join(names, ", "))
	}
}
