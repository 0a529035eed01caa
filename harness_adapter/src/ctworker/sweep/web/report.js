"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
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
  const mark = (series, x, y, r) => el("path", { d: data.models[series].mark, transform: `translate(${x} ${y}) scale(${r})`, "vector-effect": "non-scaling-stroke" });
  const colourOf = (series) => `var(--c${data.models[series].colour})`;

  const frontOf = (points, higher) => {
    const beats = (a, b) => a.x <= b.x && (higher ? a.v >= b.v : a.v <= b.v) && (a.x < b.x || a.v !== b.v);
    return points.filter((b) => !points.some((a) => beats(a, b))).sort((a, b) => a.x - b.x);
  };

  /* The front of each method, if there are two methods or more: [[method, its points], ..]. */
  const frontsOf = (points, higher) => {
    const methods = [...new Set(points.map((p) => p.method).filter((method) => method))];
    const fronts = methods.map((method) => [method, frontOf(points.filter((p) => p.method === method), higher)]);
    return methods.length > 1 ? fronts.filter(([, front]) => front.length > 1) : [];
  };

  /* An empty plot in a figure: its SVG, its box and its size. */
  const plotIn = (figure, title, left, height) => {
    const width = Math.max(240, figure.clientWidth - 26);
    figure.querySelectorAll("svg").forEach((old) => old.remove());
    const svg = el("svg", { viewBox: `0 0 ${width} ${height(width)}`, height: height(width), role: "group", "aria-label": title });
    figure.append(svg);
    return { svg, width, height: height(width), left, right: width - 12, top: 10, bottom: height(width) - 40 };
  };
  const usual = (width) => Math.min(360, Math.max(250, width * 0.62));
  const line = (at, name, x1, y1, x2, y2) => at.svg.append(el("line", { class: name, x1, y1, x2, y2 }));
  const write = (at, x, y, text, anchor = "middle", name = "tick") => at.svg.append(el("text", { class: name, x, y, "text-anchor": anchor }, text));
  const rows = (at, y, log) => {
    for (const t of log ? logTicks(y.low, y.high) : linearTicks(y.low, y.high, at.height / 60)) {
      line(at, "grid", at.left, y.at(t), at.right, y.at(t));
      write(at, at.left - 7, y.at(t) + 4, short(t), "end");
    }
    line(at, "axis", at.left, at.bottom, at.right, at.bottom);
  };
  const below = (at, text) => write(at, (at.left + at.right) / 2, at.height - 5, fitting(text, at.width));

  const drawChart = (figure, chart) => {
    const points = chart.points.filter((p) => p.x[axis] != null).map((p) => ({ ...p, x: p.x[axis] }));
    const at = plotIn(figure, chart.title, 50, (width) => (points.length > 12 ? Math.max(320, usual(width)) : usual(width)));
    if (!points.length) return;
    const ends = points.flatMap((p) => [p.v - (p.se || 0), p.v + (p.se || 0)]).concat(chart.floor == null ? [] : [chart.floor]);
    const log = chart.log && Math.min(...ends) > 0;
    const y = scale(ends, at.bottom, at.top, log, 0.1), x = scale(points.map((p) => p.x), at.left + 8, at.right - 8, false, 0.07);
    rows(at, y, log);
    for (const t of linearTicks(x.low, x.high, at.width / 75)) {
      line(at, "axis", x.at(t), at.bottom, x.at(t), at.bottom + 4);
      write(at, x.at(t), at.bottom + 18, short(t));
    }
    below(at, data.axes.find((a) => a.id === axis).label);
    const levels = points.filter((p) => p.original).map((p) => ["base", p.v]).concat(chart.floor == null ? [] : [["floor", chart.floor]]);
    for (const [name, v] of levels) line(at, name, at.left, y.at(v), at.right, y.at(v));
    if (chart.higher != null) {
      const path = (front) => front.map((p) => `${x.at(p.x)},${y.at(p.v)}`).join(" "), front = frontOf(points, chart.higher);
      for (const [method, own] of frontsOf(points, chart.higher)) drawMethod(at.svg, chart, method, own, path(own));
      if (front.length > 1) at.svg.append(el("polyline", { class: "front", points: path(front) }));
    }
    for (const p of points) drawPoint(at.svg, p, chart, x.at(p.x), y);
    const bars = points.filter((p) => p.se).map((p) => [x.at(p.x) - 4, y.at(p.v + p.se) - 1, x.at(p.x) + 4, y.at(p.v - p.se) + 1]);
    const lines = levels.map(([, v]) => [at.left, y.at(v) - 1, at.right, y.at(v) + 1]);
    drawLabels(at, points.map((p) => [x.at(p.x), y.at(p.v)]), points, [...bars, ...lines]);
  };

  const drawMethod = (svg, chart, method, front, points) => {
    const g = el("g", { class: "method", tabindex: 0, role: "img", "aria-label": `Pareto front of ${method}: ${front.map((p) => p.label).join(", ")}` });
    g.append(el("polyline", { points, stroke: colourOf(front[0].series) }), el("polyline", { class: "reach", points }));
    tells(g, { label: `Pareto front of ${method}`, facts: front.map((p) => [p.label, p.text]) }, chart);
    svg.append(g);
  };
  const drawPoint = (svg, p, chart, px, y) => {
    const colour = colourOf(p.series), py = y.at(p.v);
    const g = el("g", { class: "point", tabindex: 0, role: "img", "aria-label": `${p.label}: ${chart.title} ${p.text}` });
    if (p.se) {
      const top = y.at(p.v + p.se), bottom = y.at(p.v - p.se), style = { stroke: colour, "stroke-width": 1.5 };
      g.append(el("line", { x1: px, x2: px, y1: top, y2: bottom, ...style }));
      for (const end of [top, bottom]) g.append(el("line", { x1: px - 4, x2: px + 4, y1: end, y2: end, ...style }));
    }
    const shown = mark(p.series, px, py, 4.6);
    shown.setAttribute("fill", p.original ? "var(--card)" : colour);
    shown.setAttribute("stroke", colour);
    shown.setAttribute("stroke-width", 1.6);
    g.append(shown, el("circle", { class: "halo", cx: px, cy: py, r: 16 }));
    tells(g, p, chart);
    svg.append(g);
  };
  const tells = (g, p, chart) => {
    const show = () => showTip(g, p, chart);
    for (const name of ["pointerenter", "focus", "click"]) g.addEventListener(name, show);
    for (const name of ["pointerleave", "blur"]) g.addEventListener(name, hideTip);
  };

  /* Names at the points if all fit near them; otherwise the numbers of the key. */
  const drawLabels = (at, spots, points, blocked) => {
    const area = [at.left, at.top, at.right + 8, at.bottom];
    const made = (texts) => texts.map((text) => {
      const node = el("text", { class: "label" }, text);
      at.svg.append(node);
      return node;
    });
    const tryThem = (texts, reach) => {
      const nodes = made(texts), found = labels.place(spots, nodes.map((node) => [node.getComputedTextLength() + 4, 15]), area, blocked, reach);
      if (!found) nodes.forEach((node) => node.remove());
      return found && nodes.map((node, i) => [node, found[i]]);
    };
    const placed = (points.length <= 12 && tryThem(points.map((p) => p.label), 60)) || tryThem(points.map((p) => String(p.series + 1)), 1e9) || [];
    placed.forEach(([node, label], i) => {
      node.setAttribute("x", label.box[0] + 2);
      node.setAttribute("y", label.box[3] - 4);
      node.style.pointerEvents = "none";
      if (label.leader) at.svg.insertBefore(el("line", { class: "leader", x1: spots[i][0], y1: spots[i][1], x2: label.leader[0], y2: label.leader[1] }), at.svg.querySelector(".point"));
    });
  };

  const keyOf = (series) => {
    const key = html("div", "", "legend");
    for (const i of series) {
      const item = html("span"), svg = el("svg", { width: 14, height: 14, style: "width:14px;flex:none", "aria-hidden": true });
      const shown = mark(i, 7, 7, 4.6);
      shown.setAttribute("fill", data.models[i].original ? "none" : colourOf(i));
      shown.setAttribute("stroke", colourOf(i));
      svg.append(shown);
      item.append(html("b", String(i + 1)), svg, html("span", data.models[i].label));
      key.append(item);
    }
    return key;
  };

  // -- layers, spread, matrices --------------------------------------------------------------------------
  const layerTicks = (at, n, xAt, embedding) => {
    const step = Math.max(1, Math.ceil(n / Math.max(4, (at.right - at.left) / 34)));
    if (embedding) write(at, xAt(-1), at.bottom + 18, "emb.");
    for (let i = embedding && step > 1 ? step : 0; i < n; i += step) write(at, xAt(i), at.bottom + 18, String(i));
  };
  const drawLines = (figure, plot) => {
    const at = plotIn(figure, plot.title, 54, usual);
    const values = plot.lines.flatMap((each) => each.values).filter((v) => v != null && v > 0);
    if (!values.length) return;
    const n = Math.max(...plot.lines.map((each) => each.values.length)) - 1;
    const y = scale(values, at.bottom, at.top, true, 0.08);
    const xAt = (i) => at.left + 12 + ((i + 1) / Math.max(1, n)) * (at.right - at.left - 20);
    rows(at, y, true);
    layerTicks(at, n, xAt, true);
    below(at, plot.axis);
    for (const each of plot.lines) {
      const colour = colourOf(each.series), known = each.values.map((v, i) => [i - 1, v]).filter(([, v]) => v != null && v > 0);
      at.svg.append(el("polyline", { points: known.map(([i, v]) => `${xAt(i)},${y.at(v)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 1.5 }));
      for (const [i, v] of known) {
        const g = el("g", { class: "point" });
        if (i % Math.ceil(n / 8) === 0) {
          const shown = mark(each.series, xAt(i), y.at(v), 3.2);
          shown.setAttribute("fill", colour);
          g.append(shown);
        }
        g.append(el("circle", { class: "halo", cx: xAt(i), cy: y.at(v), r: 8 }));
        tells(g, { label: each.label, facts: [["after layer", i < 0 ? "embedding" : String(i)], [plot.title, String(v)]] }, plot);
        at.svg.append(g);
      }
    }
  };

  const drawSpread = (figure, plot) => {
    const at = plotIn(figure, plot.title, 30, () => 60 + 22 * plot.rows.length);
    const values = plot.rows.flatMap((row) => [row.mean, row.low, row.median, row.high, row.tail]).concat(plot.floor).filter((v) => v > 0);
    const least = Math.max(Math.min(...values), 1e-7 * Math.max(...values));
    const x = scale([least, Math.max(...values)], at.left, at.right, true, 0.03);
    for (const t of logTicks(x.low, x.high)) {
      line(at, "grid", x.at(t), at.top, x.at(t), at.bottom);
      write(at, x.at(t), at.bottom + 16, short(t));
    }
    if (plot.floor) line(at, "floor", x.at(plot.floor), at.top, x.at(plot.floor), at.bottom);
    below(at, at.width < 420 ? "KL of a target (nats)" : "KL of a target (nats): bar: quartiles, line: median, mark: mean, tick: 99.9 %");
    plot.rows.forEach((row, k) => {
      const y = at.top + 11 + 22 * k, colour = colourOf(row.series), g = el("g", { class: "point", tabindex: 0, role: "img", "aria-label": row.label });
      const on = (v) => x.at(Math.max(v, least));
      if (row.low != null && row.high != null) g.append(el("rect", { x: on(row.low), width: Math.max(0, on(row.high) - on(row.low)), y: y - 6, height: 12, fill: colour, opacity: 0.3 }));
      const strokes = [[row.median, row.tail, 0, 0, 1], [row.median, row.median, -6, 6, 2], [row.tail, row.tail, -4, 4, 1.6]];
      for (const [a, b, up, down, w] of strokes)
        if (a != null && b != null) g.append(el("line", { x1: on(a), x2: on(b), y1: y + up, y2: y + down, stroke: colour, "stroke-width": w }));
      const shown = mark(row.series, on(row.mean), y, 4.2);
      shown.setAttribute("fill", colour);
      g.append(shown, el("rect", { class: "halo", x: at.left, width: at.right - at.left, y: y - 11, height: 22 }));
      tells(g, row, plot);
      at.svg.append(g);
      write(at, at.left - 6, y + 4, String(row.series + 1), "end");
    });
  };

  const drawHeat = (figure, plot) => {
    const at = plotIn(figure, plot.title, 76, () => 60 + 24 * plot.kinds.length);
    const known = plot.values.flat().filter((v) => v > 0), high = Math.max(...known), low = Math.max(Math.min(...known), high / 1e4);
    const n = plot.values[0].length, w = (at.right - at.left) / n;
    plot.kinds.forEach((kind, row) => {
      write(at, at.left - 6, at.top + 24 * row + 16, kind, "end");
      plot.values[row].forEach((v, i) => {
        if (v == null) return;
        const share = high > low ? Math.log(Math.max(v, low) / low) / Math.log(high / low) : 1;
        const g = el("g", { class: "point" });
        g.append(el("rect", { x: at.left + i * w, y: at.top + 24 * row, width: w + 0.3, height: 24, fill: `color-mix(in srgb, var(--high) ${(100 * share).toFixed(1)}%, var(--low))` }));
        tells(g, { label: `${kind}, layer ${i}`, facts: [["KL alone", short(v)], ["of the model's", `${(100 * v / plot.whole).toFixed(1)} %`]] }, plot);
        at.svg.append(g);
      });
    });
    layerTicks(at, n, (i) => at.left + (i + 0.5) * w, false);
    below(at, `layer (light: ${short(low)}, dark: ${short(high)})`);
  };

  // -- downloads -----------------------------------------------------------------------------------------
  const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "paint-order", "opacity", "text-anchor"];
  /* The drawn chart as a file of its own: the page's styles in it, with title, subtitle and key. */
  const standalone = (figure, plot, series) => {
    const svg = figure.querySelector("svg"), copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const page = getComputedStyle(document.documentElement), own = [...svg.querySelectorAll("*")];
    [...copy.querySelectorAll("*")].forEach((node, i) => {
      const style = getComputedStyle(own[i]);
      for (const name of STYLES) node.setAttribute(name, style.getPropertyValue(name));
      for (const name of ["class", "style", "tabindex", "role"]) node.removeAttribute(name);
    });
    const unseen = (node) => ["fill", "stroke"].some((name) => node.getAttribute(name) === "rgba(0, 0, 0, 0)");
    copy.querySelectorAll("circle, rect, polyline").forEach((node) => { if (unseen(node)) node.remove(); });
    const row = 16, all = height + 64 + row * series.length, file = el("svg", { xmlns: NS, viewBox: `0 0 ${width} ${all}`, width, height: all, "font-family": "system-ui, sans-serif" });
    const put = (y, text, size, colour, weight = 400, x = 8) => file.append(el("text", { x, y, "font-size": size, "font-weight": weight, fill: page.getPropertyValue(colour) }, text));
    file.append(el("rect", { width, height: all, fill: page.getPropertyValue("--card") }));
    const fit = (text, size) => Math.min(size, (width - 16) / (0.62 * text.length)); // points of a text that fits the width
    put(20, plot.full || plot.title, fit(plot.full || plot.title, 14), "--text", 700);
    put(38, plot.sub, fit(plot.sub, 11), "--muted");
    copy.removeAttribute("style");
    for (const [key, value] of Object.entries({ x: 0, y: 48, width, height })) copy.setAttribute(key, value);
    file.append(copy);
    series.forEach((i, k) => {
      const y = height + 66 + row * k, shown = mark(i, 32, y - 4, 4.6);
      shown.setAttribute("fill", page.getPropertyValue(`--c${data.models[i].colour}`));
      file.append(shown);
      put(y, String(i + 1), 11, "--muted", 400, 8);
      put(y, data.models[i].label, 12, "--text", 400, 44);
    });
    return { text: new XMLSerializer().serializeToString(file), width, height: all };
  };
  const save = (url, name) => {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  };
  const saveAs = async (kind, figure, plot, series) => {
    const { text, width, height } = standalone(figure, plot, series), name = (plot.full || plot.title).toLowerCase().replace(/[^a-z0-9.]+/g, "-");
    const url = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    if (kind === "SVG") return save(url, `${name}.svg`);
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas"), sharp = Math.max(2, 1600 / width);
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return save(canvas.toDataURL("image/png"), `${name}.png`);
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
  const addFigures = (id, plots, draw, seriesOf) => {
    const place = document.getElementById(id);
    for (const plot of place ? plots : []) {
      const figure = html("figure"), caption = html("figcaption"), buttons = html("span", "", "save");
      for (const kind of ["SVG", "PNG"]) {
        const button = html("button", kind);
        button.type = "button";
        button.title = `Download ${plot.title} as ${kind}`;
        button.addEventListener("click", () => saveAs(kind, figure, plot, seriesOf(plot)));
        buttons.append(button);
      }
      caption.append(buttons, plot.title, html("small"));
      const about = caption.querySelector("small"), [before, after] = plot.part ? plot.sub.split(plot.part) : [plot.sub || ""];
      about.append(before);
      if (plot.part) about.append(html("b", plot.part, "part"), after || "");
      figure.append(caption);
      place.append(figure);
      figures.push(() => draw(figure, plot));
    }
  };
  const thin = document.getElementById("thin");
  const drawAll = () => {
    hideTip();
    figures.forEach((draw) => draw());
    if (thin) thin.hidden = !document.querySelector(".method");
  };

  for (const place of document.querySelectorAll("[data-key]")) place.replaceWith(keyOf(data.models.map((_, i) => i)));
  const every = (of) => (plot) => [...new Set(plot[of].map((each) => each.series))].sort((a, b) => a - b);
  addFigures("charts", data.charts, drawChart, every("points"));
  addFigures("spread", data.spread, drawSpread, every("rows"));
  addFigures("layers", data.layers, drawLines, every("lines"));
  addFigures("heat", data.heat, drawHeat, () => []);
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
