module github.com/oncegate/oncegate/ci/testrun

go 1.26
