"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const SHAPES = ["circle", "square", "triangle", "diamond"];
  const tip = document.getElementById("tip");
  let axis = data.axes.length ? data.axes[0].id : "";

  const el = (name, attributes = {}, text = "") => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    return node;
  };
  const html = (name, text = "", className = "") => {
    const node = document.createElement(name);
    if (text) node.textContent = text;
    if (className) node.className = className;
    return node;
  };

  // -- scales --------------------------------------------------------------------------------------------
  const niceStep = (span, n) => {
    const raw = span / Math.max(1, n), power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= raw);
  };
  const linearTicks = (low, high, n) => {
    const step = niceStep(high - low, n), ticks = [];
    for (let t = Math.ceil(low / step - 1e-9); t * step <= high + step * 1e-9; t++) ticks.push(t * step);
    return ticks;
  };
  const logTicks = (low, high) => {
    const ticks = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p++)
      for (const m of [1, 2, 5]) if (m * 10 ** p >= low && m * 10 ** p <= high) ticks.push(m * 10 ** p);
    if (ticks.length < 2) return linearTicks(low, high, 4);
    const powers = ticks.filter((t) => Math.abs(Math.log10(t) - Math.round(Math.log10(t))) < 1e-9);
    return ticks.length > 7 && powers.length > 2 ? powers : ticks;
  };
  const short = (v) => {
    const a = Math.abs(v);
    if (a >= 1e6 || (a > 0 && a < 1e-3)) return (+v.toPrecision(3)).toExponential().replace("e+", "e");
    return String(+v.toPrecision(4));
  };
  const fitting = (label, width) => (label.length * 6.5 > width ? label.split(" (")[0] : label);
  const scale = (values, from, to, log, pad) => {
    const f = log ? Math.log : (v) => v, g = log ? Math.exp : (v) => v;
    let low = Math.min(...values.map(f)), high = Math.max(...values.map(f));
    const room = (high - low) * pad || Math.abs(high) * 0.05 || 1;
    low -= room; high += room;
    const at = (v) => from + ((f(v) - low) / (high - low)) * (to - from);
    return { at, low: g(low), high: g(high) };
  };

  // -- a chart -------------------------------------------------------------------------------------------
  const mark = (shape, x, y, r) => {
    if (shape === "square") return el("rect", { x: x - r * 0.9, y: y - r * 0.9, width: 1.8 * r, height: 1.8 * r, rx: 1 });
    if (shape === "triangle") return el("path", { d: `M${x} ${y - 1.2 * r}L${x + 1.1 * r} ${y + 0.8 * r}H${x - 1.1 * r}Z` });
    if (shape === "diamond") return el("path", { d: `M${x} ${y - 1.25 * r}L${x + 1.25 * r} ${y}L${x} ${y + 1.25 * r}L${x - 1.25 * r} ${y}Z` });
    return el("circle", { cx: x, cy: y, r });
  };
  const look = (series) => ({ colour: `var(--c${series % 8})`, shape: SHAPES[series % SHAPES.length] });

  const frontOf = (points, higher) => {
    const beats = (a, b) => a.x <= b.x && (higher ? a.v >= b.v : a.v <= b.v) && (a.x < b.x || a.v !== b.v);
    return points.filter((b) => !points.some((a) => beats(a, b))).sort((a, b) => a.x - b.x);
  };

  const drawChart = (figure, chart) => {
    const width = Math.max(240, figure.clientWidth - 26), height = Math.min(330, Math.max(230, width * 0.62));
    const box = { left: 50, right: width - 12, top: 10, bottom: height - 40 };
    const points = chart.points.filter((p) => p.x[axis] != null).map((p) => ({ ...p, x: p.x[axis] }));
    const old = figure.querySelector("svg");
    if (old) old.remove();
    const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": chart.title });
    figure.append(svg);
    if (!points.length) return;
    const ends = points.flatMap((p) => [p.v - (p.se || 0), p.v + (p.se || 0)]);
    const log = chart.log && Math.min(...ends) > 0;
    const y = scale(ends, box.bottom, box.top, log, 0.1);
    const x = scale(points.map((p) => p.x), box.left + 8, box.right - 8, false, 0.07);
    const seen = data.axes.find((a) => a.id === axis);
    for (const t of log ? logTicks(y.low, y.high) : linearTicks(y.low, y.high, height / 60)) {
      svg.append(el("line", { class: "grid", x1: box.left, x2: box.right, y1: y.at(t), y2: y.at(t) }));
      svg.append(el("text", { x: box.left - 7, y: y.at(t) + 4, "text-anchor": "end" }, short(t)));
    }
    svg.append(el("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    for (const t of linearTicks(x.low, x.high, width / 75)) {
      svg.append(el("line", { class: "axis", x1: x.at(t), x2: x.at(t), y1: box.bottom, y2: box.bottom + 4 }));
      svg.append(el("text", { x: x.at(t), y: box.bottom + 18, "text-anchor": "middle" }, short(t)));
    }
    svg.append(el("text", { x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle" }, fitting(seen.label, width)));
    for (const p of points.filter((p) => p.original))
      svg.append(el("line", { class: "base", x1: box.left, x2: box.right, y1: y.at(p.v), y2: y.at(p.v) }));
    if (chart.higher != null) {
      const front = frontOf(points, chart.higher);
      if (front.length > 1) svg.append(el("polyline", { class: "front", points: front.map((p) => `${x.at(p.x)},${y.at(p.v)}`).join(" ") }));
    }
    const boxes = points.map((p) => ({ l: x.at(p.x) - 7, r: x.at(p.x) + 7, t: y.at(p.v) - 7, b: y.at(p.v) + 7 }));
    for (const p of points) drawPoint(svg, p, chart, x.at(p.x), y);
    for (const p of points) drawLabel(svg, p, x.at(p.x), y.at(p.v), box, boxes);
  };

  const drawPoint = (svg, p, chart, px, y) => {
    const { colour, shape } = look(p.series), py = y.at(p.v);
    const g = el("g", { class: "point", tabindex: 0, role: "img", "aria-label": `${p.label}: ${chart.title} ${p.text}` });
    if (p.se) {
      const top = y.at(p.v + p.se), bottom = y.at(p.v - p.se), style = { stroke: colour, "stroke-width": 1.5 };
      g.append(el("line", { x1: px, x2: px, y1: top, y2: bottom, ...style }));
      for (const end of [top, bottom]) g.append(el("line", { x1: px - 4, x2: px + 4, y1: end, y2: end, ...style }));
    }
    const shown = mark(shape, px, py, 5);
    shown.setAttribute("fill", p.original ? "var(--card)" : colour);
    shown.setAttribute("stroke", colour);
    shown.setAttribute("stroke-width", 2);
    g.append(shown, el("circle", { class: "halo", cx: px, cy: py, r: 16 }));
    const show = () => showTip(g, p, chart);
    g.addEventListener("pointerenter", show);
    g.addEventListener("focus", show);
    g.addEventListener("click", show);
    g.addEventListener("pointerleave", hideTip);
    g.addEventListener("blur", hideTip);
    svg.append(g);
  };

  /* A label goes where it covers nothing, or nowhere: the point itself tells its name. */
  const drawLabel = (svg, p, px, py, area, boxes) => {
    const text = el("text", { class: "label" }, p.label);
    svg.append(text);
    const w = text.getComputedTextLength(), h = 13;
    const places = [[10, 4], [-10 - w, 4], [-w / 2, -12], [-w / 2, 22], [9, -9], [9, 17], [-9 - w, -9], [-9 - w, 17]];
    for (const [dx, dy] of places) {
      const at = { l: px + dx, r: px + dx + w, t: py + dy - h + 3, b: py + dy + 3 };
      const inside = at.l >= area.left - 4 && at.r <= area.right + 8 && at.t >= area.top - 8 && at.b <= area.bottom;
      if (inside && !boxes.some((o) => at.l < o.r && o.l < at.r && at.t < o.b && o.t < at.b)) {
        boxes.push(at);
        text.setAttribute("x", at.l);
        text.setAttribute("y", py + dy);
        text.style.pointerEvents = "none";
        return;
      }
    }
    text.remove();
  };

  /* entries: name, number of the colour, shape. */
  const legendOf = (entries) => {
    const legend = html("div", "", "legend");
    for (const [name, series, shape] of entries) {
      const item = html("span"), svg = el("svg", { width: 14, height: 14, style: "width:14px", "aria-hidden": true });
      const shown = mark(shape, 7, 7, 5);
      shown.setAttribute("fill", look(series).colour);
      svg.append(shown);
      item.append(svg, document.createTextNode(name));
      legend.append(item);
    }
    return legend;
  };

  // -- layers --------------------------------------------------------------------------------------------
  const drawLines = (figure, plot) => {
    const width = Math.max(240, figure.clientWidth - 26), height = Math.min(330, Math.max(230, width * 0.62));
    const box = { left: 54, right: width - 12, top: 10, bottom: height - 40 };
    figure.querySelectorAll("svg, .legend").forEach((old) => old.remove());
    figure.append(legendOf(plot.lines.map((line) => [line.label, line.series, "circle"])));
    const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": plot.title });
    figure.append(svg);
    const values = plot.lines.flatMap((line) => line.values).filter((v) => v != null && (!plot.log || v > 0));
    if (!values.length) return;
    const n = Math.max(...plot.lines.map((line) => line.values.length));
    const y = scale(values, box.bottom, box.top, plot.log, 0.08), x = scale([0, Math.max(1, n - 1)], box.left + 6, box.right - 6, false, 0);
    const xAt = (i) => box.left + 6 + (i / Math.max(1, n - 1)) * (box.right - box.left - 12);
    for (const t of plot.log ? logTicks(y.low, y.high) : linearTicks(y.low, y.high, height / 60)) {
      svg.append(el("line", { class: "grid", x1: box.left, x2: box.right, y1: y.at(t), y2: y.at(t) }));
      svg.append(el("text", { x: box.left - 7, y: y.at(t) + 4, "text-anchor": "end" }, short(t)));
    }
    svg.append(el("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
    for (const t of linearTicks(0, n - 1, width / 75).filter((t) => Number.isInteger(t)))
      svg.append(el("text", { x: xAt(t), y: box.bottom + 18, "text-anchor": "middle" }, String(t)));
    svg.append(el("text", { x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle" }, plot.axis));
    for (const line of plot.lines) {
      const { colour } = look(line.series);
      const path = line.values.map((v, i) => (v != null && (!plot.log || v > 0) ? `${xAt(i)},${y.at(v)}` : "")).filter(Boolean);
      svg.append(el("polyline", { points: path.join(" "), fill: "none", stroke: colour, "stroke-width": 1.75 }));
      line.values.forEach((v, i) => {
        if (v == null || (plot.log && v <= 0)) return;
        const g = el("g", { class: "point" });
        g.append(el("circle", { cx: xAt(i), cy: y.at(v), r: 2.5, fill: colour }), el("circle", { class: "halo", cx: xAt(i), cy: y.at(v), r: 9 }));
        const show = () => showTip(g, { label: line.label, facts: [[plot.axis, String(i)], [plot.title, String(v)]] }, plot);
        g.addEventListener("pointerenter", show);
        g.addEventListener("click", show);
        g.addEventListener("pointerleave", hideTip);
        svg.append(g);
      });
    }
  };

  // -- exact numbers -------------------------------------------------------------------------------------
  const showTip = (node, p, chart) => {
    tip.replaceChildren(html("b", p.label));
    const list = html("dl");
    for (const [name, value] of p.facts) list.append(html("dt", name), html("dd", value));
    tip.append(list);
    tip.hidden = false;
    const at = node.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(6, at.left + at.width / 2 - size.width / 2), document.documentElement.clientWidth - size.width - 6);
    const above = at.top - size.height - 6;
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${(above > 0 ? above : at.bottom + 6) + window.scrollY}px`;
  };
  const hideTip = () => { tip.hidden = true; };

  // -- the page ------------------------------------------------------------------------------------------
  const figures = [];
  const addFigures = (id, plots, draw) => {
    const place = document.getElementById(id);
    for (const plot of place ? plots : []) {
      const figure = html("figure"), caption = html("figcaption", plot.title);
      if (plot.sub) caption.append(html("small", plot.sub));
      figure.append(caption);
      place.append(figure);
      figures.push(() => draw(figure, plot));
    }
  };
  const drawAll = () => { hideTip(); figures.forEach((draw) => draw()); };

  const legend = document.getElementById("legend");
  if (legend && data.series.length > 1)
    legend.replaceWith(legendOf(data.series.map((name, i) => [name, i, look(i).shape])));
  addFigures("charts", data.charts, drawChart);
  addFigures("layers", data.layers, drawLines);
  drawAll();
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; drawAll(); } });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  for (const button of document.querySelectorAll("[data-axis]"))
    button.addEventListener("click", () => {
      axis = button.dataset.axis;
      for (const other of document.querySelectorAll("[data-axis]")) other.setAttribute("aria-pressed", other === button);
      drawAll();
    });

  const body = document.querySelector("#table tbody");
  for (const button of document.querySelectorAll("[data-column]"))
    button.addEventListener("click", () => {
      const th = button.parentElement, up = th.getAttribute("aria-sort") !== "ascending", i = +button.dataset.column;
      for (const other of document.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.children[i].dataset.sort;
      const order = (a, b) => {
        const [s, t] = [key(a), key(b)];
        if (s === undefined || t === undefined) return (s === undefined) - (t === undefined); // empty cells stay last
        const both = s !== "" && t !== "" && !isNaN(s) && !isNaN(t);
        return (up ? 1 : -1) * (both ? s - t : s.localeCompare(t, undefined, { numeric: true }));
      };
      body.append(...[...body.rows].sort(order));
    });

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (dark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
})();
