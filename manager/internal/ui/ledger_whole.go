package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oncegate/oncegate/manager/internal/ledger"
	"github.com/oncegate/oncegate/manager/internal/ledger/views"
)

// ledgerWhole is the ledger in numbers. All viewers share it.
type ledgerWhole struct {
	views.Capacity
	Sums   []series
	Chart  *chart // nil before the first minute
	Counts map[string]uint64
	Since  time.Time
	// Quarantine is nil when there is none.
	Quarantine *Quarantine
	minutes    []ledger.Minute
}

// series is one way in which reserves end: a color of the chart.
type series struct {
	Class, Title, Text string
	Total              uint64
	of                 func(*ledger.Minute) uint64
}

var ledgerSeries = []series{
	{Class: "s-new", Title: "New", Text: "the work ran", of: func(m *ledger.Minute) uint64 { return m.New }},
	{Class: "s-hit", Title: "Hit", Text: "got the recorded answer", of: func(m *ledger.Minute) uint64 { return m.Hit }},
	{Class: "s-wait", Title: "Wait", Text: "met a running attempt", of: func(m *ledger.Minute) uint64 { return m.Wait }},
	{Class: "s-409", Title: "409", Text: "outcome unknown", of: func(m *ledger.Minute) uint64 { return m.Unknown }},
	{Class: "s-422", Title: "422", Text: "another request", of: func(m *ledger.Minute) uint64 { return m.Mismatch }},
	{Class: "s-410", Title: "410", Text: "answer not recorded", of: func(m *ledger.Minute) uint64 { return m.Omitted }},
	{Class: "s-503", Title: "503", Text: "no room, or a failure", of: func(m *ledger.Minute) uint64 { return m.Refused }},
}

func (u *UI) ledgerWhole(ctx context.Context) (*ledgerWhole, error) {
	l := u.opts.Ledger
	w := &ledgerWhole{Since: u.opts.Journal.Since(), Counts: make(map[string]uint64), Quarantine: u.quarantine()}
	var err error
	if w.Capacity, err = views.CapacityOf(ctx, l); err != nil {
		return nil, err
	}
	for _, list := range ledgerLists {
		if list.Name != "" {
			_, w.Counts[list.Name] = u.opts.Journal.Incidents(list.kind, 0)
		}
	}
	minutes := l.Funnel()
	w.Sums = slices.Clone(ledgerSeries)
	for i := range w.Sums {
		for m := range minutes {
			w.Sums[i].Total += w.Sums[i].of(&minutes[m])
		}
	}
	w.Chart = drawChart(minutes)
	w.minutes = slices.Clone(minutes)
	slices.Reverse(w.minutes)
	return w, nil
}

// chart is a stack of bars for each minute, in the units of its view box.
type chart struct {
	Bars []bar
	// Top is what the upper line stands for, Middle what the middle one does.
	Top, Middle uint64
	// Text describes the chart.
	Text string
}

type bar struct {
	Title  string
	X      int
	Pieces []piece
}

// piece is a series in a minute. Y and Height are in tenths of a unit.
type piece struct {
	Class     string
	Y, Height string
}

// The chart's size. Its bars stand on chartFloor.
const (
	chartStep  = 12
	chartFloor = 150
	chartTop   = 10
)

// drawChart draws the minutes, the last one at the right. It returns nil without minutes.
func drawChart(minutes []ledger.Minute) *chart {
	if len(minutes) == 0 {
		return nil
	}
	c := &chart{}
	var all, most uint64
	for m := range minutes {
		var sum uint64
		for i := range ledgerSeries {
			sum += ledgerSeries[i].of(&minutes[m])
		}
		all, most = all+sum, max(most, sum)
	}
	c.Top = roundUp(most)
	c.Middle = c.Top / 2
	scale := float64(chartFloor-chartTop) / float64(c.Top)
	for m := range minutes {
		b := bar{X: (ledger.FunnelMinutes + 1 - len(minutes) + m) * chartStep}
		var words []string
		y := float64(chartFloor)
		for i := range ledgerSeries {
			n := ledgerSeries[i].of(&minutes[m])
			if n == 0 {
				continue
			}
			words = append(words, ledgerSeries[i].Title+" "+num(n))
			height := max(float64(n)*scale, 1) // a single refusal must not vanish beside many hits
			y -= height
			b.Pieces = append(b.Pieces, piece{ledgerSeries[i].Class, fmt.Sprintf("%.1f", y), fmt.Sprintf("%.1f", height)})
		}
		if len(words) > 0 {
			b.Title = minutes[m].Start.UTC().Format("15:04") + ": " + strings.Join(words, ", ")
			c.Bars = append(c.Bars, b)
		}
	}
	c.Text = fmt.Sprintf("Bars for the last %d minutes: %s calls, %s in the busiest minute.", len(minutes), num(all), num(most))
	return c
}

// roundUp is the next number with one digit, and at least 2.
func roundUp(n uint64) uint64 {
	unit := uint64(1)
	for n/unit >= 10 {
		unit *= 10
	}
	return max((n+unit-1)/unit*unit, 2)
}
