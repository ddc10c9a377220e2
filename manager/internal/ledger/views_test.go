package ledger_test

import (
	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

func init() { ledger.ListEntries, ledger.EntryByRef = views.List, views.ByRef }
