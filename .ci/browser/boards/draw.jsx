// Draws a board with Grafana's own components: the panel's frame, the time series, units, colours and legend are theirs. What
// Grafana's server does is here: the grid, the rows' titles, the variables, and the calls of Prometheus.
import { createTheme, FieldType, getDisplayProcessor, getFieldDisplayName, ThemeContext, toDataFrame, dateTime } from "@grafana/data";
import { GlobalStyles, PanelChrome, TimeSeries } from "@grafana/ui";
import { createRoot } from "react-dom/client";

const wanted = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: "light" } });
const range = { from: dateTime(+wanted.get("from") * 1000), to: dateTime(+wanted.get("to") * 1000) };
range.raw = { from: range.from, to: range.to };
const columns = 24, unit = 38, gap = 8;

// frames asks Prometheus for a panel's data.
const frames = async (panel) => {
  const all = [];
  for (const target of panel.targets) {
    const expr = target.expr.replaceAll("$__rate_interval", wanted.get("rate")).replaceAll("$job", ".*").replaceAll("$instance", ".*");
    const query = new URLSearchParams({ query: expr, start: wanted.get("from"), end: wanted.get("to"), step: wanted.get("step") });
    const answer = await (await fetch("/prometheus/api/v1/query_range?" + query)).json();
    if (answer.status !== "success") throw new Error(panel.title + ": " + answer.error);
    for (const series of answer.data.result) {
      const name = (target.legendFormat || "").replace(/{{\s*(\w+)\s*}}/g, (_, label) => series.metric[label] ?? "");
      const { custom, ...defaults } = panel.fieldConfig.defaults;
      const frame = toDataFrame({
        fields: [
          { name: "Time", type: FieldType.time, values: series.values.map((v) => v[0] * 1000) },
          {
            name: "Value", type: FieldType.number, values: series.values.map((v) => (v[1] === "NaN" ? null : +v[1])),
            config: { ...defaults, displayNameFromDS: name, color: { mode: "palette-classic" }, custom: { drawStyle: "line", lineInterpolation: "linear", lineWidth: 1, ...custom } },
          },
        ],
      });
      all.push(frame);
    }
  }
  all.forEach((frame, i) => {
    for (const field of frame.fields) {
      field.state = { seriesIndex: i };
      field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
    }
    frame.fields[1].state.displayName = getFieldDisplayName(frame.fields[1], frame, all);
  });
  return all;
};

const Panel = ({ panel, data }) => {
  const { x, y, w, h } = panel.gridPos;
  const width = (w / columns) * document.documentElement.clientWidth - gap, height = h * unit - gap;
  const style = { position: "absolute", left: (x / columns) * document.documentElement.clientWidth + gap / 2, top: y * unit + 50, width, height };
  if (panel.type === "row") return <h5 style={{ ...style, paddingTop: 8 }}>{panel.title}</h5>;
  return (
    <div style={style}>
      <PanelChrome title={panel.title} width={width} height={height}>
        {(innerW, innerH) =>
          data.length === 0 ? (
            <div className="empty" style={{ textAlign: "center", paddingTop: innerH / 2 - 10, color: theme.colors.text.secondary }}>No data</div>
          ) : (
            <TimeSeries frames={data} structureRev={1} width={innerW} height={innerH} timeRange={range} timeZone="utc"
              legend={{ showLegend: true, calcs: [], ...panel.options.legend }} />
          )
        }
      </PanelChrome>
    </div>
  );
};

const draw = async () => {
  const board = await (await fetch("/boards/" + wanted.get("board"))).json();
  const data = await Promise.all(board.panels.map((p) => (p.type === "row" ? null : frames(p))));
  const height = Math.max(...board.panels.map((p) => p.gridPos.y + p.gridPos.h)) * unit + 58;
  createRoot(document.body).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: "absolute", left: 0, top: 0, width: "100%", height }}>
        <h3 style={{ position: "absolute", left: 8, top: 10 }}>{board.title}</h3>
        {board.panels.map((p, i) => <Panel key={p.id} panel={p} data={data[i]} />)}
      </div>
    </ThemeContext.Provider>,
  );
  window.panels = board.panels.filter((p) => p.type !== "row").length;
};
draw().catch((e) => (window.failed = String(e)));
