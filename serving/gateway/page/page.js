// The playground: asks the gateway for plans and runs, draws the plan as a graph and shows its steps while they run.
// No library and no network beyond the gateway. Everything from outside is put into the page as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let asking = null; // AbortController of the request under way
let nodes = new Map(); // step index -> its group in the graph

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "class") made.className = value;
    else if (key === "text") made.textContent = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

function headers(more = {}) {
  const key = $("key").value.trim();
  return { ...more, ...(key ? { authorization: "Bearer " + key } : {}) };
}

async function errorOf(response) {
  try {
    const error = (await response.json()).error;
    const again = response.headers.get("retry-after");
    return error.message + (again ? " Try again in " + again + " s." : "");
  } catch {
    return "the gateway answered with status " + response.status + ".";
  }
}

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = false;
}

// ---- state and catalog

async function showState() {
  try {
    const state = await (await fetch("readyz")).json();
    $("state").dataset.ready = state.ready ? "yes" : "no";
    $("state").textContent = state.ready ? "ready" : "not ready: " + state.reason;
  } catch {
    $("state").dataset.ready = "no";
    $("state").textContent = "the gateway does not answer";
  }
}

let shownWorkers = [];

async function showCatalog() {
  const response = await fetch("v1/catalog", { headers: headers() });
  $("key-field").hidden = response.status !== 401 && !$("key").value;
  if (!response.ok) {
    $("catalog").replaceChildren(element("li", { text: response.status === 401 ? "Give a key to see the workers." : await errorOf(response) }));
    return;
  }
  const found = await response.json();
  shownWorkers = found.catalog.workers;
  $("catalog-count").textContent = found.catalog.name + ", " + shownWorkers.length + " workers";
  $("run").hidden = !found.runs;
  $("plan").classList.toggle("second", found.runs);
  listWorkers();
}

function listWorkers() {
  const wanted = $("filter").value.trim().toLowerCase();
  const fits = shownWorkers.filter((one) => (one.name + " " + one.description).toLowerCase().includes(wanted));
  $("catalog").replaceChildren(...fits.map(workerItem));
  if (!fits.length && shownWorkers.length) $("catalog").append(element("li", { text: "No worker fits." }));
}

function workerItem(worker) {
  const needed = new Set(worker.args.required || []);
  const args = Object.entries(worker.args.properties || {}).map(([name, schema]) => name + (needed.has(name) ? "" : "?") + ": " + typeOf(schema));
  const tag = element("span", { class: "tag " + worker.effect, text: worker.effect });
  const item = element("li", {}, element("code", { text: worker.name }), tag);
  if (args.length) item.append(element("div", { class: "args", text: args.join(", ") }));
  if (worker.description) item.append(element("p", { text: worker.description.split("\n")[0] }));
  return item;
}

function typeOf(schema) {
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.type === "array") return (schema.items ? typeOf(schema.items) : "any") + "[]";
  return Array.isArray(schema.type) ? schema.type.join(" | ") : schema.type || "any";
}

// ---- the plan as a graph

function needsOf(step) {
  const data = new Set();
  const walk = (value) => {
    if (Array.isArray(value)) value.forEach(walk);
    else if (value && typeof value === "object") {
      if ("$literal" in value) return;
      if (typeof value.$from === "string") data.add(Number(value.$from.split("/")[1]));
      else Object.values(value).forEach(walk);
    }
  };
  walk(step.args);
  return { data, order: new Set((step.after || []).filter((one) => !data.has(one))) };
}

function drawPlan(plan) {
  nodes = new Map();
  $("graph-part").hidden = false;
  if (!plan.length) {
    $("graph").replaceChildren(element("p", { class: "note", text: "The plan is empty: no worker fits this query." }));
    return;
  }
  const needs = plan.map(needsOf);
  const level = [];
  needs.forEach((need, index) => {
    const before = [...need.data, ...need.order].filter((one) => one < index);
    level[index] = before.length ? 1 + Math.max(...before.map((one) => level[one])) : 0;
  });
  const width = 30 + 8 * Math.max(...plan.map((step) => Math.min(40, step.type.length)), 12);
  const gapX = 64, height = 54, gapY = 18;
  const row = new Map();
  const place = plan.map((_, index) => {
    const y = row.get(level[index]) || 0;
    row.set(level[index], y + 1);
    return { x: level[index] * (width + gapX) + 4, y: y * (height + gapY) + 4 };
  });
  const whole = { w: (Math.max(...level) + 1) * (width + gapX) - gapX + 8, h: Math.max(...row.values()) * (height + gapY) - gapY + 8 };
  const svg = shape("svg", { width: whole.w, height: whole.h, viewBox: "0 0 " + whole.w + " " + whole.h, role: "img", "aria-label": plan.length + " steps" });
  const marker = shape("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" });
  marker.append(shape("path", { d: "M0,0 L8,4 L0,8 z" }));
  const defs = shape("defs");
  defs.append(marker);
  svg.append(defs);
  plan.forEach((_, index) => {
    for (const kind of ["data", "order"]) {
      for (const from of needs[index][kind]) {
        if (!(from in place) || from >= index) continue;
        const a = place[from], b = place[index];
        const x1 = a.x + width, y1 = a.y + height / 2, x2 = b.x - 2, y2 = b.y + height / 2, bend = Math.max(20, (x2 - x1) / 2);
        svg.append(shape("path", { class: kind, d: "M" + x1 + "," + y1 + " C" + (x1 + bend) + "," + y1 + " " + (x2 - bend) + "," + y2 + " " + x2 + "," + y2, "marker-end": "url(#tip)" }));
      }
    }
  });
  plan.forEach((step, index) => {
    const group = shape("g", { class: "step-node", "data-step": index, transform: "translate(" + place[index].x + "," + place[index].y + ")" });
    const name = step.type.length > 40 ? step.type.slice(0, 39) + "\u2026" : step.type;
    group.append(shape("title", {}, index + " " + step.type + " " + JSON.stringify(step.args)));
    group.append(shape("rect", { width, height, rx: 7 }), shape("text", { x: 12, y: 22 }, index + " " + name), shape("text", { x: 12, y: 41, class: "what" }, "planned"));
    svg.append(group);
    nodes.set(index, group);
  });
  $("graph").replaceChildren(svg);
}

function mark(step, status, text) {
  const node = nodes.get(step);
  if (!node) return;
  node.setAttribute("class", "step-node " + status);
  node.querySelector(".what").textContent = text || status.replaceAll("_", " ");
}

// ---- what came back

function facts(pairs) {
  $("facts").replaceChildren(...pairs.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: String(value) }))));
}

function showRungs(rungs) {
  $("rungs-part").hidden = !rungs.length;
  const rows = rungs.map((one) => {
    const cells = [one.rung, one.outcome, one.prompt_tokens + " + " + one.completion_tokens, one.seconds.toFixed(2), one.message || (one.findings.length ? one.findings.length + " findings" : "")];
    return element("tr", {}, ...cells.map((cell) => element("td", { text: cell })));
  });
  $("rungs").tBodies[0].replaceChildren(...rows);
}

function showFindings(findings) {
  $("findings-part").hidden = !findings.length;
  $("findings").replaceChildren(...findings.map((one) => element("li", { class: one.severity + "-finding" }, element("b", { text: one.fault }), " " + (one.path ? "at " + one.path + ": " : "") + one.message)));
}

function showSteps(steps, plan) {
  $("steps-part").hidden = !steps.length;
  const made = steps.map((one) => {
    const summary = element("summary", {}, element("span", { class: "status " + one.status, text: one.status.replaceAll("_", " ") + ", " + one.seconds.toFixed(2) + " s" }), one.step + " ", element("code", { text: one.worker }));
    const box = element("details", { class: "step" }, summary);
    const args = plan && plan[one.step] ? plan[one.step].args : null;
    if (args) box.append(element("pre", { text: JSON.stringify(args, null, 1) }));
    if (one.status === "done") box.append(element("pre", { text: JSON.stringify(one.result, null, 1) }));
    if (one.failure) box.append(element("p", { text: one.failure.code + ": " + one.failure.message }));
    if (one.reason) box.append(element("p", { text: one.reason }));
    return box;
  });
  $("steps").replaceChildren(...made);
}

function showAnswer(answer) {
  $("answer-part").hidden = !answer;
  if (!answer) return;
  $("answer").textContent = answer.text || "There is no answer: " + answer.error;
  const notes = [answer.by_model ? null : "no model wrote this", answer.confidence === null ? null : "confidence " + answer.confidence, answer.for_person ? "a person should look" : null, answer.cut ? answer.cut + " results were cut" : null];
  $("answer-note").textContent = notes.filter(Boolean).join(", ");
}

function showPlanResponse(found) {
  $("outcome").hidden = false;
  facts([["plan", found.valid ? "valid" : "none that is valid"], ["by", found.rung], ["steps", found.plan ? found.plan.length : null], ["tokens", found.prompt_tokens + " + " + found.completion_tokens], ["seconds", found.seconds.toFixed(2)]]);
  if (found.plan) drawPlan(found.plan);
  showFindings(found.findings);
  showRungs(found.rungs);
  $("raw").textContent = JSON.stringify(found, null, 1);
}

function showRunResponse(found) {
  const done = found.steps.filter((one) => one.status === "done").length;
  facts([["run", found.status.replaceAll("_", " ")], ["by", found.rung], ["steps done", done + " of " + found.steps.length], ["seconds", found.seconds.toFixed(2)], ["id", found.run_id]]);
  if (found.plan && !nodes.size) drawPlan(found.plan);
  for (const one of found.steps) mark(one.step, one.status, one.status.replaceAll("_", " ") + ", " + one.seconds.toFixed(2) + " s");
  showAnswer(found.answer);
  showFindings(found.findings);
  showSteps(found.steps, found.plan);
  showRungs(found.rungs);
  showWaiting(found);
  for (const one of found.refusals) fail(one.worker + ": " + one.failure.message);
  if (found.status === "refused" && !found.refusals.length) fail(found.findings.length ? "There is no valid plan; the findings below say why." : "There is no valid plan: " + found.missing.join(" "));
  $("raw").textContent = JSON.stringify(found, null, 1);
}

function showWaiting(found) {
  const waiting = found.steps.filter((one) => one.status === "awaiting_approval");
  $("wait-part").hidden = !waiting.length;
  $("waiting").replaceChildren(...waiting.map((one) => {
    const args = found.plan ? JSON.stringify(found.plan[one.step].args) : "";
    const say = (word) => () => resume(found.run_id, { [one.step]: word });
    const yes = element("button", { type: "button", text: "Allow" }), no = element("button", { type: "button", class: "second", text: "Refuse" });
    yes.addEventListener("click", say(true));
    no.addEventListener("click", say(false));
    return element("div", {}, element("p", { text: "step " + one.step + ": " + one.worker + " " + args }), element("div", { class: "buttons" }, yes, no));
  }));
}

// ---- asking

function begin() {
  asking = new AbortController();
  nodes = new Map();
  for (const id of ["error", "answer-part", "graph-part", "findings-part", "steps-part", "rungs-part", "wait-part"]) $(id).hidden = true;
  for (const id of ["run", "plan"]) $(id).disabled = true;
  $("stop").hidden = false;
}

function end() {
  asking = null;
  for (const id of ["run", "plan"]) $(id).disabled = false;
  $("stop").hidden = true;
}

async function ask(what) {
  const query = $("query").value;
  if (asking || !query.trim()) return;
  begin();
  try {
    if (what === "plan") {
      const response = await fetch("v1/plans", { method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify({ query }), signal: asking.signal });
      if (response.ok) showPlanResponse(await response.json());
      else fail(await errorOf(response));
    } else await streamRun("v1/runs", { query });
  } catch (error) {
    fail(error.name === "AbortError" ? "Stopped. Steps that had begun go on at the gateway." : "The gateway does not answer.");
  } finally {
    end();
  }
}

async function resume(id, approve) {
  begin();
  try {
    await streamRun("v1/runs/" + encodeURIComponent(id) + "/resume", { approve });
  } catch {
    fail("The gateway does not answer.");
  } finally {
    end();
  }
}

async function streamRun(path, body) {
  const begun = performance.now();
  const response = await fetch(path, { method: "POST", headers: headers({ "content-type": "application/json", accept: "text/event-stream" }), body: JSON.stringify(body), signal: asking.signal });
  if (!response.ok) return fail(await errorOf(response));
  $("outcome").hidden = false;
  const seconds = () => ((performance.now() - begun) / 1000).toFixed(1);
  facts([["run", "planning"]]);
  let finished = false;
  for await (const [kind, data] of events(response.body)) {
    if (kind === "plan") drawPlan(data.plan);
    else if (kind === "step_started") mark(data.step, "running", "running");
    else if (kind === "step_retried") mark(data.step, "running", "again after " + data.failure.code);
    else if (["step_finished", "step_failed", "step_skipped"].includes(kind)) mark(data.step, data.status, data.status.replaceAll("_", " ") + (data.seconds ? ", " + data.seconds.toFixed(2) + " s" : ""));
    else if (kind === "approval_needed") mark(data.step, "awaiting_approval");
    else if (kind === "result") { showRunResponse(data); finished = true; }
    else if (kind === "error") { fail(data.error.message); finished = true; }
    if (!finished) facts([["run", kind === "attempt" ? "planned" : "under way"], ["seconds", seconds()]]);
  }
  if (!finished) fail("The connection broke; the run goes on at the gateway.");
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let cut;
    while ((cut = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, cut).split("\n");
      text = text.slice(cut + 2);
      const kind = lines.find((line) => line.startsWith("event: "));
      const data = lines.find((line) => line.startsWith("data: "));
      if (kind && data) yield [kind.slice(7), JSON.parse(data.slice(6))];
    }
  }
}

// ---- start

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(event.submitter ? event.submitter.value : $("run").hidden ? "plan" : "run");
});
$("query").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask($("run").hidden ? "plan" : "run");
});
$("stop").addEventListener("click", () => asking && asking.abort());
$("filter").addEventListener("input", listWorkers);
$("key").addEventListener("change", () => {
  sessionStorage.setItem("plansmith-key", $("key").value.trim());
  showCatalog();
});
$("key").value = sessionStorage.getItem("plansmith-key") || "";
showState();
setInterval(showState, 5000);
showCatalog();
