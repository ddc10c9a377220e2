package server

import (
	"github.com/oncegate/oncegate/manager/internal/httpd"
	"github.com/oncegate/oncegate/manager/internal/openapi"
)

// DescriptionRoutes serve the description of the API. It holds no secrets, and clients read it before they have a token.
func DescriptionRoutes() []httpd.Route {
	return []httpd.Route{{Method: "GET", Path: "/openapi.json", Roles: httpd.Anyone, Handle: func(_ *httpd.Request, w *httpd.Response) error {
		w.JSON(200)
		w.Body = append(w.Body, openapi.Document()...)
		return nil
	}}}
}
