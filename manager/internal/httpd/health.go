package httpd

import (
	"github.com/oncegate/oncegate/manager/api"
)

func (s *Server) healthRoutes() []Route {
	return []Route{
		{Method: "GET", Path: "/healthz", Roles: Anyone, Exempt: true, Handle: s.healthz},
		{Method: "GET", Path: "/readyz", Roles: Anyone, Exempt: true, Handle: s.readyz},
	}
}

// healthz: the process answers.
func (s *Server) healthz(_ *Request, w *Response) error {
	w.JSON(200)
	w.Body = append(w.Body, `{"status":"ok"}`...)
	return nil
}

// readyz: the process wants traffic.
func (s *Server) readyz(_ *Request, w *Response) error {
	if why := s.NotReady(); why != "" {
		w.Problem(&api.Problem{
			Status: 503, Code: api.CodeUnavailable, Title: "Not ready", Detail: why, RetryAfterSeconds: RetrySoon,
		})
		return nil
	}
	w.JSON(200)
	w.Body = append(w.Body, `{"status":"ready"}`...)
	return nil
}
