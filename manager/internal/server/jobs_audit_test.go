package server

import (
	"fmt"
	"testing"

	"github.com/oncegate/oncegate/manager/internal/ledger"
)

// TestOperatorsCallsOnJobsAreAudited: what an operator changes by the API or the command line is in the audit log, once it
// is done. What submitters and workers do is not.
func TestOperatorsCallsOnJobsAreAudited(t *testing.T) {
	j := newJobSite(t, ledger.Options{})
	for _, id := range []string{"a", "b", "c"} {
		j.call(202, "POST", "/v1/jobs", `{"function":"f","id":"`+id+`"}`)
	}
	id, token, _ := j.claimOne()
	j.call(200, "POST", "/v1/jobs/"+id+"/retry", `{"lease_token":"`+token+`","delay_ms":0}`)
	id, token, _ = j.claimOne()
	j.call(200, "POST", "/v1/jobs/"+id+"/finish", `{"lease_token":"`+token+`","status":"failed"}`)
	j.wantAudited()

	j.call(404, "POST", "/v1/jobs/none/cancel", `{}`)
	j.call(409, "POST", "/v1/jobs/c/retry", `{}`)
	j.call(200, "POST", "/v1/jobs/c/cancel", `{}`)
	j.call(200, "POST", "/v1/jobs/c/retry", `{}`)
	fresh := j.call(202, "POST", "/v1/functions/f/dead-letters/"+id+"/replay", `{}`)["id"]
	j.call(409, "POST", "/v1/functions/f/dead-letters/"+id+"/replay", `{}`)
	j.call(200, "POST", "/v1/functions/f/pause", `{}`)
	j.call(200, "POST", "/v1/functions/f/resume", `{}`)
	const by = ` by an operator" via=api token=0 roles=admin `
	j.wantAudited(`"job cancelled`+by+`job=c function=f`, `"job retried`+by+`job=c function=f`, fmt.Sprintf(`"job replayed%sjob=%s function=f copy=%s`, by, id, fresh),
		`"function paused`+by+`function=f`, `"function resumed`+by+`function=f`)
}
