package main

import (
	"bytes"
	"context"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/oncegate/oncegate/envoy/envoybin"
)

// gatePrograms are the columns of CPU time and memory.
var gatePrograms = []string{"Envoy", "manager", "ext_proc", "Redis", "store"}

// value is what a row measured of one program; ok is false when the row has none.
func value[T any](r *gateResult, values []T, program string) (v T, ok bool) {
	for i, p := range r.on.counted {
		if p.name == program && i < len(values) {
			return values[i], true
		}
	}
	return v, false
}

// writeGates prints the table, and stores it, with a plot, in gate.md and gate.svg.
// The columns say everything of the first number of connections, and the median and
// the CPU time of the others.
func writeGates(ctx context.Context, s gateSettings, envoy envoybin.Binary, results []*gateResult) error {
	var b strings.Builder
	programs := slices.DeleteFunc(slices.Clone(gatePrograms), func(program string) bool {
		return !slices.ContainsFunc(results, func(r *gateResult) bool { _, ok := value(r, r.loads[0].cpu, program); return ok })
	})
	fmt.Fprintf(&b, "| %s | requests/s | p50 ms | p99 ms | %s | total us | RSS MB |", plural(s.connections[0]), strings.Join(programs, " us | ")+" us")
	for _, n := range s.connections[1:] {
		fmt.Fprintf(&b, " p50 ms, %s | total us |", plural(n))
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---:|", len(programs)+5+2*(len(s.connections)-1)))
	for _, r := range results {
		m := r.loads[0]
		fmt.Fprintf(&b, "| %s | %.0f | %s | %s |", r.name, m.rate, millis(m.p50), millis(m.p99))
		var memory []string
		for _, program := range programs {
			if d, ok := value(r, m.cpu, program); ok {
				fmt.Fprintf(&b, " %d |", micros(d))
			} else {
				b.WriteString(" – |")
			}
			if rss, ok := value(r, m.rss, program); ok && rss != 0 {
				memory = append(memory, fmt.Sprint(rss>>20))
			}
		}
		fmt.Fprintf(&b, " **%d** | %s |", micros(m.total()), strings.Join(memory, "+"))
		for _, m := range r.loads[1:] {
			fmt.Fprintf(&b, " %s | **%d** |", millis(m.p50), micros(m.total()))
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	machine, err := describeMachine(ctx, s, envoy)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b, "%s: %d rounds of %s for each cell, in turns. %s\n", today(), s.rounds, s.duration, machine)
	fmt.Print("\n", b.String())
	if err := os.WriteFile(filepath.Join(s.out, "gate.md"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	svg := filepath.Join(s.out, "gate.svg")
	if err := plotGates(svg, s.connections[0], results); err != nil || s.doc == "" {
		return err
	}
	return refreshDoc(s.doc, "gate", b.String(), svg)
}

// today is the day of a measurement.
func today() string { return time.Now().Format(time.DateOnly) }

// plural is a number of connections.
func plural(connections int) string {
	if connections == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", connections)
}

// docEnd is the mark at the end of a result in a document.
const docEnd = "<!-- end of result -->\n"

// refreshDoc replaces the result with a name in a document and, unless svg is empty, the plot beside it. The result is
// between the marks "<!-- result: NAME -->" and docEnd.
func refreshDoc(file, name, result, svg string) error {
	docBegin := "<!-- result: " + name + " -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), docBegin)
	_, after, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has not the marks %q and %q", file, docBegin, docEnd)
	}
	if err := os.WriteFile(file, []byte(before+docBegin+"\n"+result+"\n"+docEnd+after), 0o644); err != nil {
		return err
	}
	if svg == "" {
		return nil
	}
	plot, err := os.ReadFile(svg)
	if err != nil {
		return err
	}
	return os.WriteFile(strings.TrimSuffix(file, ".md")+".svg", plot, 0o644)
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }

// describeMachine says what the numbers were measured on and with.
func describeMachine(ctx context.Context, s gateSettings, envoy envoybin.Binary) (string, error) {
	machine, err := describeHost(s.out)
	if err != nil {
		return "", err
	}
	nginx := "nginx"
	if out, err := tool(ctx, "nginx", "-v"); err == nil {
		nginx = strings.TrimPrefix(strings.TrimSpace(out), "nginx version: ")
	}
	redis := strings.Fields(version(ctx, "redis-server", "--version"))
	for _, f := range redis {
		if v, ok := strings.CutPrefix(f, "v="); ok {
			redis = []string{v}
		}
	}
	return fmt.Sprintf("%s Envoy %s with one worker, %s, Redis %s, %s, wrk with one thread; all on this machine.",
		machine, envoy.Version, nginx, strings.Join(redis, " "), runtime.Version()), nil
}

// describeHost says what machine this is, and how fast it makes a write to dir durable.
func describeHost(dir string) (string, error) {
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", err
	}
	memory := "unknown"
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		var kb int64
		if _, err := fmt.Sscanf(line, "MemTotal: %d kB", &kb); err == nil {
			memory = fmt.Sprintf("%d GB", (kb+1<<19)>>20)
		}
	}
	sync, err := syncTime(dir)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("Machine: %d cores (%s), %s memory, Linux %s, %s, a write of 512 bytes with fdatasync takes %v (median of %d).",
		runtime.NumCPU(), model, memory, strings.TrimSpace(string(kernel)), fileSystem(dir), sync.Round(time.Microsecond), syncs), nil
}

const syncs = 200

// syncTime is the median of how long a small write and its fdatasync take.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "sync")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	block := bytes.Repeat([]byte("x"), 512)
	if _, err := f.Write(make([]byte, syncs*len(block))); err != nil {
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	took := make([]time.Duration, syncs)
	for i := range took {
		began := time.Now()
		if _, err := f.WriteAt(block, int64(i*len(block))); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[syncs/2], nil
}

// fileSystem is the type of the one that a directory is on.
func fileSystem(dir string) string {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "unknown file system"
	}
	switch st.Type {
	case 0xef53:
		return "ext4"
	case 0x58465342:
		return "xfs"
	case 0x9123683e:
		return "btrfs"
	case 0x794c7630:
		return "overlayfs"
	case 0x01021994:
		return "tmpfs (no disk)"
	}
	return fmt.Sprintf("file system %#x", st.Type)
}

// plotGates draws the CPU time of a request, a bar for each row, a part for each
// program.
func plotGates(file string, connections int, results []*gateResult) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("CPU time of a request, %d connections", connections)
	p.X.Label.Text = "us"
	p.X.Min = 0
	p.Legend.Top = false
	var names []string
	var below *plotter.BarChart
	for i, program := range gatePrograms {
		var values plotter.Values
		for _, r := range slices.Backward(results) {
			d, _ := value(r, r.loads[0].cpu, program)
			values = append(values, float64(d)/float64(time.Microsecond))
			if i == 0 {
				names = append(names, r.name)
			}
		}
		bars, err := plotter.NewBarChart(values, vg.Points(14))
		if err != nil {
			return err
		}
		bars.Horizontal = true
		bars.LineStyle.Width = 0
		bars.Color = plotutil.Color(i)
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(program, bars)
	}
	p.NominalY(names...)
	p.BackgroundColor = color.White
	return p.Save(9*vg.Inch, vg.Length(len(results))*0.32*vg.Inch+vg.Inch, file)
}
