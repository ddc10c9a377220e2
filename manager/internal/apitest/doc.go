// Package apitest has the test of manager/api that needs rapid, so that the API requires nothing of it.
package apitest
