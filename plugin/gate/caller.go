package gate

import (
	"strings"

	"github.com/oncegate/oncegate/manager/api"
	"github.com/oncegate/oncegate/plugin/request"
)

// Callers that the scope does not distinguish.

// lacks returns the part of the scope that the current request needs and does not have; empty: none.
func (s *Stream) lacks(headers request.Headers) string {
	return request.CallerPart(s.route, headers, s.plugin.host.Property)
}

// refuseAmbiguous refuses a request whose key may be that of another caller, because it lacks a part of its scope.
func (s *Stream) refuseAmbiguous(lacks string) verdict {
	p := s.plugin
	p.metrics.count(p.metrics.ambiguous)
	if more, due := p.ambiguousLog.due(p.host.Now()); due {
		p.host.Log(LevelWarn, "oncegate: a request that matches "+s.route.Rule()+" was refused, because it lacks "+lacks+
			`; name in "scope" what tells callers apart, or set "anonymous": "shared"`+more)
	}
	return s.refuse(&api.Problem{
		Status: 400,
		Code:   api.CodeScopeAmbiguous,
		Title:  "The scope of the idempotency key does not identify this caller",
		Detail: "The request was not executed. It lacks " + lacks + `, by which "scope" tells callers apart. Allowed: a request that has it, another "scope", or "anonymous": "shared".`,
	})
}

// logShared names the routes where callers may share their keys.
func (p *Plugin) logShared() {
	if names := p.config.Shared(); len(names) > 0 {
		p.host.Log(LevelInfo, `oncegate: requests that lack what the scope names share their keys ("anonymous": "shared") in `+strings.Join(names, ", "))
	}
}
