"use strict";
/* Places for labels of points, as charts/labels.py gives them, operation by operation: a test compares the two. */
const labels = (() => {
  const RADIUS = 6, GAP = 3, FREE = 10, ANYWHERE = 1e9;
  const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

  const crosses = (start, stop, box) => {
    let low = 0, high = 1;
    for (const axis of [0, 1]) {
      const step = stop[axis] - start[axis];
      if (step === 0) {
        if (start[axis] <= box[axis] || start[axis] >= box[axis + 2]) return false;
        continue;
      }
      const first = (box[axis] - start[axis]) / step, last = (box[axis + 2] - start[axis]) / step;
      low = Math.max(low, Math.min(first, last));
      high = Math.min(high, Math.max(first, last));
    }
    return low < high;
  };

  const candidates = ([x, y], [w, h], area) => {
    const near = RADIUS + GAP, lefts = [x + near, x - near - w, x - w / 2, x + RADIUS / 2, x - RADIUS / 2 - w];
    const tops = [y - h / 2, y - near - h, y + near], span = Math.max(12, w / 2);
    for (let k = 1; k < 40; k++) lefts.push(x + near + k * span);
    for (let k = 1; k < 40; k++) lefts.push(x - near - w - k * span);
    for (let k = 1; k < 60; k++) tops.push(y - near - h - k * (h / 2));
    for (let k = 1; k < 60; k++) tops.push(y + near + k * (h / 2));
    const across = lefts.filter((left) => area[0] <= left && left + w <= area[2]);
    const down = tops.filter((top) => area[1] <= top && top + h <= area[3]);
    return across.flatMap((left) => down.map((top) => [left, top, left + w, top + h]));
  };

  const byDistance = (point, size, area, reach) => {
    const found = [];
    for (const box of candidates(point, size, area)) {
      const end = [0, 1].map((axis) => Math.min(Math.max(point[axis], box[axis]), box[axis + 2]));
      const far = (end[0] - point[0]) * (end[0] - point[0]) + (end[1] - point[1]) * (end[1] - point[1]);
      if (far < reach * reach) found.push([far, box, end]);
    }
    return found.sort((a, b) => a[0] - b[0]);
  };

  const best = (i, points, size, area, solid, found, reach) => {
    const placed = found.filter(Boolean).map((label) => label.box), taken = [...solid, ...placed];
    const leaders = points.map((p, k) => [p, found[k] && found[k].leader]).filter(([, stop]) => stop);
    let under = null;
    for (const [far, box, end] of byDistance(points[i], size, area, reach)) {
      if (taken.some((other) => overlap(box, other))) continue;
      const label = { box, leader: far > (RADIUS + FREE) * (RADIUS + FREE) ? end : null };
      under = under || label;
      if (leaders.some(([start, stop]) => crosses(start, stop, box))) continue;
      if (!label.leader || !placed.some((other) => crosses(points[i], label.leader, other))) return label;
    }
    return reach < ANYWHERE ? null : under;
  };

  const place = (points, sizes, area, blocked = [], reach = ANYWHERE) => {
    const marks = points.map(([x, y]) => [x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS]);
    const near = points.map(([x, y]) => points.filter(([p, q]) => Math.abs(p - x) < 60 && Math.abs(q - y) < 40).length);
    const order = points.map((_, i) => i).sort((i, k) => near[k] - near[i] || i - k);
    const found = points.map(() => null);
    for (const i of order) {
      found[i] = best(i, points, sizes[i], area, [...marks, ...blocked], found, reach);
      if (!found[i]) return null;
    }
    return found;
  };
  return { place, overlap };
})();
