module github.com/oncegate/oncegate/manager/client

go 1.24.0

// This repository's. Users of the client get the required version.
replace github.com/oncegate/oncegate/manager/api => ../api

require github.com/oncegate/oncegate/manager/api v0.1.0

require (
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.0 // indirect
)
