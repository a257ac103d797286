/* A plan drawn as a layered graph: a box for each step, below the steps that it needs. Long dependencies pass through
   the layers between on places of their own, so that no line crosses a box. */

const BOX_HEIGHT = 34;
const LAYER_GAP = 34;
const NODE_GAP = 18;
const BEND_WIDTH = 12;

function planGraph(plan, marks, label) {
  const good = plan.edges.filter((edge) => edge.source < edge.target && edge.source >= 0);
  const layers = layersOf(plan, good);
  orderLayers(layers);
  const size = placeLayers(layers);
  const svg = drawing("svg", {
    class: "graph",
    role: "img",
    "aria-label": `${label}: ${graphWords(plan)}`,
    width: size.width,
    height: size.height,
    viewBox: `0 0 ${size.width} ${size.height}`,
  });
  const nodes = layers.flat();
  for (const edge of mergedEdges(good)) svg.append(edgePath(edge, nodes));
  for (const node of nodes) if (node.step !== null) svg.append(stepBox(node, plan.steps[node.step], marks[node.step]));
  return svg;
}

function graphWords(plan) {
  return plan.steps
    .map((step, index) => {
      const needs = [...new Set(plan.edges.filter((edge) => edge.target === index).map((edge) => edge.source))];
      return `step ${index} ${shownText(step.worker)}${needs.length ? ` needs ${needs.join(", ")}` : ""}`;
    })
    .join("; ");
}

/* One line for all references between two steps; `after` is drawn apart only where there is no reference. */
function mergedEdges(edges) {
  const found = new Map();
  for (const edge of edges) {
    const key = `${edge.source} ${edge.target}`;
    const old = found.get(key);
    if (!old) found.set(key, { ...edge, labels: edge.label ? [edge.label] : [] });
    else {
      if (edge.kind === "reference") old.kind = "reference";
      if (edge.label && !old.labels.includes(edge.label)) old.labels.push(edge.label);
    }
  }
  return [...found.values()];
}

function boxWidth(step, index) {
  return Math.min(230, Math.max(84, 30 + 7.3 * (Array.from(step.worker).length + String(index).length)));
}

function layersOf(plan, edges) {
  const depth = plan.steps.map(() => 0);
  plan.steps.forEach((_, index) => {
    for (const edge of edges) if (edge.target === index) depth[index] = Math.max(depth[index], depth[edge.source] + 1);
  });
  const layers = Array.from({ length: Math.max(0, ...depth) + 1 }, () => []);
  const nodes = plan.steps.map((step, index) => {
    const node = { step: index, layer: depth[index], width: boxWidth(step, index), above: [], key: String(index) };
    layers[depth[index]].push(node);
    return node;
  });
  for (const edge of mergedEdges(edges)) {
    let above = nodes[edge.source];
    for (let layer = above.layer + 1; layer < nodes[edge.target].layer; layer += 1) {
      const key = `${edge.source} ${edge.target} ${layer}`;
      const bend = { step: null, layer, width: BEND_WIDTH, above: [above], key };
      layers[layer].push(bend);
      above = bend;
    }
    nodes[edge.target].above.push(above);
  }
  return layers;
}

/* Each layer in the order of the mean place of what is above; a few sweeps are enough for plans of this size. */
function orderLayers(layers) {
  for (const layer of layers) layer.forEach((node, place) => (node.place = place));
  for (const layer of layers.slice(1)) {
    for (const node of layer) {
      const above = node.above.map((other) => other.place);
      node.weight = above.length ? above.reduce((a, b) => a + b, 0) / above.length : node.place;
    }
    layer.sort((a, b) => a.weight - b.weight || (a.step ?? 1e6) - (b.step ?? 1e6));
    layer.forEach((node, place) => (node.place = place));
  }
}

function placeLayers(layers) {
  const widths = layers.map((layer) => layer.reduce((sum, node) => sum + node.width + NODE_GAP, -NODE_GAP));
  const width = Math.max(...widths, 40) + 4;
  layers.forEach((layer, row) => {
    let x = (width - widths[row]) / 2;
    for (const node of layer) {
      node.x = x + node.width / 2;
      node.y = 2 + row * (BOX_HEIGHT + LAYER_GAP);
      x += node.width + NODE_GAP;
    }
  });
  return { width: Math.ceil(width), height: layers.length * (BOX_HEIGHT + LAYER_GAP) - LAYER_GAP + 4 };
}

function edgePath(edge, nodes) {
  const find = (key) => nodes.find((node) => node.key === key);
  const from = find(String(edge.source));
  const to = find(String(edge.target));
  const stops = [{ x: from.x, y: from.y + BOX_HEIGHT }];
  for (let layer = from.layer + 1; layer < to.layer; layer += 1) {
    const bend = find(`${edge.source} ${edge.target} ${layer}`);
    stops.push({ x: bend.x, y: bend.y }, { x: bend.x, y: bend.y + BOX_HEIGHT });
  }
  stops.push({ x: to.x, y: to.y - 6 });
  let path = `M${stops[0].x} ${stops[0].y}`;
  for (let place = 1; place < stops.length; place += 1) {
    const [a, b] = [stops[place - 1], stops[place]];
    const middle = (a.y + b.y) / 2;
    path += a.x === b.x ? `L${b.x} ${b.y}` : `C${a.x} ${middle} ${b.x} ${middle} ${b.x} ${b.y}`;
  }
  const tip = `M${to.x - 4} ${to.y - 7}L${to.x} ${to.y - 1}L${to.x + 4} ${to.y - 7}Z`;
  const words = edge.kind === "after" ? "order only" : edge.labels.map(shownText).join(", ");
  return drawing(
    "g",
    { class: `edge ${edge.kind}` },
    drawing("title", {}, `step ${edge.source} to step ${edge.target}: ${words}`),
    drawing("path", { class: "line", d: path }),
    drawing("path", { class: "tip", d: tip }),
  );
}

function stepBox(node, step, mark) {
  const room = Math.floor((node.width - 30) / 7.3);
  const name = Array.from(shownText(step.worker));
  const text = name.length > room ? `${name.slice(0, Math.max(1, room - 1)).join("")}…` : name.join("");
  return drawing(
    "g",
    { class: `box ${mark || ""}`, transform: `translate(${node.x - node.width / 2} ${node.y})` },
    drawing("title", {}, `step ${node.step}: ${shownText(step.worker)}${mark ? ` (${MARK_WORDS[mark]})` : ""}`),
    drawing("rect", { width: node.width, height: BOX_HEIGHT, rx: 7 }),
    drawing("text", { class: "index", x: 10, y: 21.5 }, String(node.step)),
    drawing("text", { class: "name", x: 14 + 7.3 * String(node.step).length, y: 21.5 }, text),
  );
}
