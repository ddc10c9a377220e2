package gate

import (
	"strings"
	"time"

	"github.com/oncegate/oncegate/plugin/internal/fields"
)

// Calls that go to the cluster of the request's route although the routes are in an inner listener, because that costs the
// proxy less. A route of the proxy asks for it in its metadata. Such a call passes none of the route's rules, so the gate
// makes sure that there are none: from time to time a call goes through the inner listener, which says what the request was
// there before and after the rules.

const (
	// surveyPeriod is the time for which the gate relies on what one call through the inner listener showed.
	surveyPeriod = 10 * time.Second
	// distrustPeriod is the time for which no call goes directly after a rule was seen. Rules may concern some requests
	// only.
	distrustPeriod = time.Minute
	// maxSurveys bounds the surveys that the gate keeps. Further calls go through the inner listener.
	maxSurveys = 64
	// maxTimeout stands for the time-out of a route that has none.
	maxTimeout = 24 * time.Hour
)

// surveyed is what a survey is about. Several routes may have one name, and not all of them the same rules, so what one
// path shows says nothing about another.
type surveyed struct {
	host, route, cluster string // the names that the proxy's configuration gives them; host is the virtual host
	method, path         string // path without query
}

// survey is what the gate knows about the rules for requests of one kind.
type survey struct {
	surveyed
	plain        bool          // the last answer that shows rules showed none
	asked, shown int64         // when the last call was made that shows rules, and when the last answer came; nanoseconds
	distrusted   int64         // until then no call goes directly, nanoseconds
	timeout      time.Duration // of the route
}

// question is a call that shows whether the route has rules.
type question struct {
	survey          *survey
	authority, path string // of the request as the gate sent it
}

// direct reports whether the call of the current stream may go to the cluster of its route, and within which time. If it
// may not, q is what to ask the inner listener; nil: nothing.
func (r *carrier) direct(headers [][2]string, timeout time.Duration, now int64) (cluster string, most time.Duration, q *question) {
	host := r.p.host
	if v, ok := host.Property("xds", "route_metadata", "filter_metadata", "oncegate", "direct"); !ok || len(v) != 1 || v[0] == 0 {
		return "", 0, nil
	}
	virtual, _ := host.Property("xds", "virtual_host_name")
	route, _ := host.Property("xds", "route_name")
	name, _ := host.Property("xds", "cluster_name")
	if len(route) == 0 || len(name) == 0 {
		r.logRules(now, "a route with \"direct\" in its metadata has no name")
		return "", 0, nil
	}
	about := surveyed{host: string(virtual), route: string(route), cluster: string(name)}
	var authority, path string
	for i := range headers {
		switch h := headers[i]; {
		case h[0] == headerAuthority:
			authority = h[1]
		case h[0] == headerPath:
			path = h[1]
			about.path = withoutQuery(path)
		case h[0] == headerMethod:
			about.method = h[1]
		case strings.HasPrefix(h[0], "x-envoy-upstream-rq-"):
			return "", 0, nil // a client that the proxy trusts sets the time-out, so it is not the route's
		}
	}
	v := r.survey(about, now)
	if v == nil {
		return "", 0, nil
	}
	if v.plain && now < v.asked+int64(surveyPeriod) && now < v.shown+int64(distrustPeriod) {
		return v.cluster, min(v.timeout, timeout), nil
	}
	v.asked = now
	return "", 0, &question{survey: v, authority: strings.Clone(authority), path: strings.Clone(path)}
}

// survey returns what is known about requests of one kind; nil: there are too many kinds.
func (r *carrier) survey(about surveyed, now int64) *survey {
	distrusted, unused := int64(0), -1
	for i, v := range r.surveys {
		if v.surveyed == about {
			return v
		}
		if v.sameRoute(about) {
			distrusted = max(distrusted, v.distrusted)
		}
		if now >= v.distrusted && now >= v.asked+int64(distrustPeriod) {
			unused = i
		}
	}
	about.method, about.path = strings.Clone(about.method), strings.Clone(about.path)
	v := &survey{surveyed: about, distrusted: distrusted}
	switch {
	case len(r.surveys) < maxSurveys:
		r.surveys = append(r.surveys, v)
	case unused >= 0:
		r.surveys[unused] = v
	default:
		return nil
	}
	return v
}

func (s *surveyed) sameRoute(other surveyed) bool {
	return s.host == other.host && s.route == other.route
}

// learnRules takes in what the inner listener said of an answer. After the words that described.fate reads come: the bytes
// of the request's headers before the route's rules and its x-envoy-expected-rq-timeout-ms, the same two after the rules,
// cluster, host and path.
func (r *carrier) learnRules(q *question, d *described, now int64) {
	v, words, why := q.survey, &d.words, ""
	before, ok1 := bytesWithoutTimeout(words[4], words[5])
	after, ok2 := bytesWithoutTimeout(words[6], words[7])
	switch {
	case words[0] != "via_upstream":
		if !refusedByFilter(words[1], words[2]) {
			return // another answer will show it
		}
		why = "a filter of the inner listener refused a request, or it has no route for it"
	case !ok1 || !ok2:
		why = "the inner listener does not say in " + headerAnswer + " what the route changes"
	case words[8] != v.cluster:
		why = "the route of the inner listener leads to another cluster"
	case d.path != q.path:
		why = "the route changes the path"
	case words[9] != q.authority:
		why = "the route changes the host"
	case before != after:
		why = "the route, or a filter after the gate, changes the request's headers"
	}
	if why == "" {
		v.plain, v.shown, v.timeout = now >= v.distrusted, now, maxTimeout
		if ms, ok := fields.Decimal(words[7]); ok && ms > 0 && ms < maxTimeout.Milliseconds() {
			v.timeout = time.Duration(ms) * time.Millisecond
		}
		return
	}
	for _, other := range r.surveys {
		if other.sameRoute(v.surveyed) {
			other.plain, other.distrusted = false, now+int64(distrustPeriod)
		}
	}
	r.logRules(now, why+" (route \""+v.route+"\")")
}

// refusedByFilter finds out by flags and attempts of the proxy's own answer whether a filter gave it, or whether there was
// no route. The flags are those of a router that found no host, or a limit reached.
func refusedByFilter(flags, attempts string) bool {
	if attempts != "0" && attempts != "-" {
		return false
	}
	switch flags {
	case "UH", "UO", "OM", "DF", "DO":
		return false
	}
	return true
}

// bytesWithoutTimeout returns the bytes of a request's headers without x-envoy-expected-rq-timeout-ms, in which the router
// writes the route's time-out; "-": the request has none.
func bytesWithoutTimeout(all, timeout string) (int64, bool) {
	n, ok := fields.Decimal(all)
	if timeout != "-" {
		n -= int64(len("x-envoy-expected-rq-timeout-ms") + len(timeout))
	}
	return n, ok && timeout != ""
}

// logRules says why calls of routes with "direct" go through the inner listener.
func (r *carrier) logRules(now int64, why string) {
	r.p.logLimited(&r.rules, now, LevelError, why, ", so the upstream calls go through the inner listener; remove \"direct\" from the route's metadata")
}
