// Package etcd is the store engine on an etcd cluster that several managers may share. A cluster of three members
// survives the loss of any one of them, and loses nothing that was acknowledged.
//
// # Layout
//
// All keys start with a prefix. A record is one key (/r/<collection>/<key>) with its index entries, its value and the
// time at which it was written. An index entry is a key without a value (/x/<collection>/<index>/<member>); the order
// of the members is that of (sort key, record key). Values that do not fit into a request are in parts (/v/...).
//
// # Transactions
//
// The first read of a transaction is linearizable and fixes a revision. All further reads and scans see the state of
// that revision, so a transaction that writes nothing needs no check. A commit is one transaction of etcd: it compares
// the revision of every record that was read or is written, and then changes all of them. If a comparison fails, the
// function runs again. The revision of an absent record is 0, and it has to be 0 at the commit.
//
// etcd allows 128 operations in a transaction, and as many in one inside it, less those around it. Write sets with too
// many comparisons for one become transactions inside one: if a comparison in any of them fails, it asks for a revision
// that does not exist, and etcd refuses the whole before it changes anything. Nothing is ever split over two
// transactions. What is too large for that is refused with a *store.LimitError.
//
// A request may have 1.5 MiB. If a write set is larger, the largest values are first written in parts, with a lease, and
// the commit takes the lease off. Until then no record refers to them, and the lease removes them if the commit never
// happens.
//
// # Requests
//
// Reads that come while others are under way wait for them and then share a request, and so do commits. Each commit is a
// transaction inside the one of the request, with its own comparisons and its own note, so it succeeds or fails by
// itself. etcd evaluates all comparisons before it changes anything, so two commits of which one changes what the other
// read never share a request. A larger commit, such as that of a batch, has its comparisons side by side and its changes in
// transactions inside it that compare nothing. So it shares a request with up to seven others. The largest commits have
// their own. Nothing waits longer than 20 ms for requests that hang.
//
// Once a transaction's revision is fixed, any member may answer its reads: what has a revision never changes. A member that
// lacks it says so, and a quorum is asked.
//
// # Guesses
//
// The first run of a function sees what it prefetches as this process wrote it lately (what it inserted or claimed) or read
// it ahead, with the revision of that commit. Other records are read, or taken for absent if they are new as a rule
// (Tx.PrefetchNew). Without guesses a lone call takes 1.4 times as long. The commit compares these revisions like all
// others, so a guess that was wrong changes nothing, and the function runs again with the records themselves. It also runs
// again if it wrote nothing or failed: no answer comes from a guess that no commit has proved. After a wrong guess the next
// eight transactions read.
//
// # Scans
//
// etcd walks a range to its end, to count it, whatever the limit. It also walks through every key that was deleted since
// it compacted. So a scan asks for the beginning of a long range only (see steps), and a claiming or repeated one starts
// where an earlier one found the first entries (see package front).
//
// A claim within 50 ms of the last one reads four times as much as it takes, for the next ones, which then read nothing (see
// ahead). What was read ahead is a guess, for 100 ms at most.
//
// # Lost answers
//
// Each commit also replaces a note (/e/<manager>/<number>), on the condition that the note is as the last commit of
// that note left it. The note has the number of the commit, and the topics to notify: a watch of the notes wakes the
// waiters of all managers. If the answer to a commit is lost, because a member was killed or the leader moved, the
// manager replaces the note itself. Either that fails, and the note has the number of the commit: it happened. Or it
// succeeds, and the commit can never happen any more, because its condition no longer holds: the function runs again.
// A transaction that only deletes has no note, so that it is possible without space. Its lost answer is ErrUnavailable.
//
// # Time
//
// etcd has no clock that a client can read, and the clocks of two managers may differ by hours. So the managers keep a
// clock of their own, as a record in etcd (/e/clock). One of them, the keeper, writes the time four times a second, by
// what a monotonic clock measures on its machine. All others hear it and add what they measure since. No wall clock
// takes part in that:
//
//   - The keeper is the manager that replaced the record last, on the condition that no other one had. A manager that
//     hears nothing for a second replaces it, and continues with its own count. So the time never goes back and never stands
//     still while a manager runs.
//   - What a manager counts is never ahead of the keeper's time, since it begins when a message arrives. A manager whose
//     own time is ahead of the keeper's (the keeper was cut off, or all were) becomes the keeper.
//   - Each record has the time at which it was written. A manager that reads one which is ahead of its own time sets
//     its own forward. So no transaction sees a record from its future.
//   - While no manager runs, etcd itself counts. The keeper has a downtime lease of a year, which it renews every five seconds.
//     The next manager reads how much of it is left. A new leader starts the count again, so this may be too little but
//     never too much. The time falls behind by what was not counted: when etcd was off, or restarted while no manager ran.
//   - The clock begins with the wall clock of the first manager. The keeper lets its seconds be at most 0.05 % longer or
//     shorter to follow its own wall clock, as adjtime does: 43 seconds a day. A manager whose clock is wrong by hours
//     makes a TTL of a day 43 seconds shorter or longer, not hours.
//
// Tx.Wall is the keeper's wall clock: the keeper writes with the time how far it is behind, from 100 ms on. So all
// managers begin jobs (run_at) by one wall clock. It jumps when a manager whose clock differs becomes the keeper.
// Capabilities.Behind is by each manager's own wall clock. A start logs a warning from 2 s on.
//
// The error is the delay of a message: a manager that hears the time a millisecond late may set a deadline a millisecond
// early. On a machine without CPU time to spare that is more, until the next tick.
//
// # Availability
//
// Requests go to any member that has a leader. A call that gets no answer tries other members for up to 4.5 seconds and
// then fails with ErrUnavailable. Without space (the alarm NOSPACE) writes fail with ErrFull, and transactions that only
// delete succeed. The keeper compacts the history, by default what is older than five to ten minutes.
package etcd
