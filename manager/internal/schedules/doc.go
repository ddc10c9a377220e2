// Package schedules enqueues jobs at the times of cron expressions, on the store of a job queue.
//
// # Each instant once
//
// A schedule is one record. It has the next instant, the first one that was not decided yet. One transaction enqueues the
// instant's job and moves next on, so a manager that dies does both or neither. Managers of a shared store may all run
// Run: their transactions read the same record, so the store lets one of them win, and the others find that next has
// moved. There is no leader. next is always after the latest instant that had a job, also when the schedule is changed,
// paused or resumed. So no instant gets a second job, whatever the clock does. After a clock was set back a schedule waits
// until it shows next. Only a schedule that was deleted and made again may repeat an instant.
//
// The job's key is the schedule's name, an at sign and the instant in UTC (see InstantKey). It tells the worker for which
// instant it works. As of any key, one live job holds it: if there is one already, it is the instant's job, unless a submitter
// owns it. Then the instant's job has no key.
//
// # Several data centres
//
// Their stores are independent. A schedule with DataCentersHome has a home among them, as a global key has. The home decides
// each instant. The others only move next on. A data centre that becomes the home begins with the first instant after it has
// noticed: those before it are of the home before. While lists of data centres differ, the home decides nothing, and the
// instants wait.
//
// # Missed instants
//
// An instant that is a minute old when a manager comes to it was missed: no manager ran, or the store or the queue took
// no jobs. The schedule's Missed says how many of the instants that are due get a job. An instant that is due on time
// replaces those that MissedOne would make up.
//
// # Overlap
//
// With OverlapSkip the transaction of an instant reads the last job. If it cannot be read, a worker may still have it. Then
// neither answer is safe: a job might run beside it, and an instant might be left out for nothing. So the instant stays due
// until an operator deletes the job's record, and from then on the job is over. Depth.Late grows meanwhile.
//
// # Clocks
//
// Instants are compared with store.Tx.Wall. Where it is the engine's own clock, that decides on all managers.
//
// A time zone's clocks skip some local times and show others twice. It depends on the hours of the expression what happens
// then:
//
//   - It names hours, as "30 2 * * *" does: each local time of the schedule has one instant. A local time that does not
//     exist has the instant at which the clocks are put forward. One that exists twice has the first.
//   - All hours of the day match, as in "30 * * * *": the schedule runs by the time that passes. A local time that does
//     not exist has no instant, and one that exists twice has both.
package schedules
