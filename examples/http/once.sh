#!/usr/bin/env bash
# Submit a job once, work it, and run work of one's own once, with curl and jq.
#
#   once.sh URL KEY
#
# URL is the manager's. The token of ONCEGATE_TOKEN is sent if it is set.
set -euo pipefail
base=$1 key=$2

headers=$(mktemp)
trap 'rm -f "$headers"' EXIT

# header NAME DEFAULT prints a header of the last answer.
header() {
	awk -v name="$1:" -v value="$2" 'tolower($1) == name { value = $2 } END { sub(/\r$/, "", value); print value }' "$headers"
}

# call METHOD PATH [BODY [KEY]] makes a call until it has an answer, and leaves its body in $answer.
#
# A lost answer says nothing about the work, so the same request goes again: the same key, the same bytes. 409
# `request-pending` means that the first attempt is still running. 429 and 503 name a time to wait. An answer of a proxy on the way
# may not be JSON.
call() {
	local method=$1 path=$2 body=${3-} idempotency=${4-} attempt wait status
	local args=(-sS --max-time 60 -X "$method" -D "$headers" -H 'Content-Type: application/json')
	[ -z "$body" ] || args+=(--data-binary "$body")
	[ -z "$idempotency" ] || args+=(-H "Idempotency-Key: $idempotency")
	[ -z "${ONCEGATE_TOKEN-}" ] || args+=(-H "Authorization: Bearer $ONCEGATE_TOKEN")
	for attempt in 1 2 3 4 5 6 7 8 9 10; do
		wait=$attempt
		if body=$(curl "${args[@]}" "$base$path" 2>/dev/null); then
			status=$(awk 'NR == 1 { print $2 }' "$headers")
			case $status-$(jq -r '.code // empty' <<<"$body" 2>/dev/null) in
			429-* | 502-* | 503-* | 504-* | *-request-pending) wait=$(header retry-after "$attempt") ;;
			*)
				answer=$body
				return
				;;
			esac
		fi
		sleep "$wait"
	done
	echo "$method $path: no answer after 10 attempts" >&2
	exit 1
}

# submit submits a job and leaves its id in $job. However often it is sent, there is one job.
submit() {
	call POST /v1/jobs '{"function": "mail.send", "payload": {"to": "ann"}}' "$key"
	echo "submitted, replayed: $(header idempotent-replayed false)"
	job=$(jq -re .id <<<"$answer")
}

# work claims a job, does it, and says so. The lease's token proves that no other worker has it now.
work() {
	call POST /v1/jobs/claim '{"functions": ["mail.send"], "worker": "example", "wait_ms": 10000}'
	call POST "/v1/jobs/$job/finish" \
		"$(jq -c '.jobs[0] | {lease_token: .lease.token, status: "complete", result: {sent: .payload.to}}' <<<"$answer")"
	call GET "/v1/jobs/$job"
	jq -r '"job: \(.state) attempt \(.attempt)"' <<<"$answer"
}

# once runs work of one's own once: it reserves the key, does the work, and records what came of it.
once() {
	local token result
	token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') # one for this attempt
	call POST /v1/ledger/reserve "$(jq -nc --arg key "$key" --arg token "$token" \
		'{$key, scope: "shop/payments", $token, fingerprint: "amount=100", wait_ms: 10000}')"
	case $(jq -r '.state // .code' <<<"$answer") in
	reserved)
		result='{"paid":100}' # the work
		call POST /v1/ledger/commit "$(jq -nc --arg key "$key" --arg token "$token" --arg body "$(printf %s "$result" | base64)" \
			'{$key, scope: "shop/payments", $token, result: {status: 201, headers: [["content-type", "application/json"]], $body}}')"
		[ "$(jq -r .state <<<"$answer")" = committed ] || { # another attempt has taken the key, for example
			echo "it ran, and its outcome is not recorded: $answer" >&2
			exit 1
		}
		echo "executed: $result"
		;;
	committed) echo "replayed: $(jq -r .result.body <<<"$answer" | base64 -d)" ;;
	*) echo "not run: $answer" ;; # another attempt runs, or its outcome is unknown: do not run it
	esac
}

submit
first=$job
submit
[ "$job" = "$first" ]
work
once
once
