package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// table is the result of one comparison: a row per system, a column per number
// of callers, operations per second in the cells; 0 where nothing was measured.
type table struct {
	name, title string
	columns     []string
	rows        []row
}

type row struct {
	name   string
	values []float64
}

func (t *table) add(name string, values []float64) { t.rows = append(t.rows, row{name, values}) }

func (t *table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n| operations/s | %s |\n|---|%s\n", t.title, strings.Join(t.columns, " | "), strings.Repeat("---:|", len(t.columns)))
	for _, r := range t.rows {
		fmt.Fprintf(&b, "| %s |", r.name)
		for _, v := range r.values {
			if v == 0 {
				b.WriteString(" – |")
			} else {
				fmt.Fprintf(&b, " %.0f |", v)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// write prints the table and stores it, with a bar chart, in dir.
func (t *table) write(dir, notes string) error {
	text := t.markdown() + "\n" + notes
	fmt.Println(text)
	if err := os.WriteFile(filepath.Join(dir, t.name+".md"), []byte(text), 0o644); err != nil {
		return err
	}
	p := plot.New()
	p.Title.Text = t.title
	p.Y.Label.Text = "operations/s"
	p.Y.Min = 0
	p.Legend.Top = true
	width := vg.Points(60 / float64(len(t.rows)))
	for i, r := range t.rows {
		bars, err := plotter.NewBarChart(plotter.Values(r.values), width)
		if err != nil {
			return err
		}
		bars.Color = plotutil.Color(i)
		bars.LineStyle.Width = 0
		bars.Offset = vg.Length(float64(i)-float64(len(t.rows)-1)/2) * width
		p.Add(bars)
		p.Legend.Add(r.name, bars)
	}
	p.NominalX(t.columns...)
	return p.Save(9*vg.Inch, 5*vg.Inch, filepath.Join(dir, t.name+".svg"))
}
