/* One answer beside its reference: step by step, as graphs, and as text. Which steps face each other and which values
   differ was decided when the page was made, by the rules of the metrics. */

const MARK_WORDS = {
  same: "same",
  changed: "differs",
  missing: "not in the answer",
  extra: "not in the reference",
};
const MARK_SIGNS = { same: "", changed: "≠", missing: "−", extra: "+" };

/* Marks of a pair: of the steps, and of each parameter on each side. */
function pairMarks(pair, reference, candidate) {
  const left = pair.reference === null ? null : reference.steps[pair.reference];
  const right = pair.candidate === null ? null : candidate.steps[pair.candidate];
  const none = () => Object.create(null); /* parameters may have any name, `__proto__` too */
  const marks = { left: none(), right: none(), leftStep: "missing", rightStep: "extra" };
  const facing = left && right && left.worker === right.worker;
  const changed = new Set(pair.changed);
  const names = {
    left: new Set((left?.args || []).map(([name]) => name)),
    right: new Set((right?.args || []).map(([name]) => name)),
  };
  for (const name of names.left)
    marks.left[name] = !facing || !names.right.has(name) ? "missing" : changed.has(name) ? "changed" : "same";
  for (const name of names.right)
    marks.right[name] = !facing || !names.left.has(name) ? "extra" : changed.has(name) ? "changed" : "same";
  if (facing) {
    const clean =
      !pair.after_differs &&
      [...Object.values(marks.left), ...Object.values(marks.right)].every((mark) => mark === "same");
    marks.leftStep = marks.rightStep = clean ? "same" : "changed";
  }
  return marks;
}

function sideBySide(item, answer) {
  const reference = item.references[answer.against];
  const grid = element("div", { class: "sides" });
  grid.append(
    element(
      "h3",
      { class: "side-title" },
      "Reference",
      item.references.length > 1 ? ` (nearest of ${item.references.length})` : "",
    ),
    element("h3", { class: "side-title" }, "Answer"),
  );
  const marks = { reference: [], candidate: [] };
  for (const pair of answer.pairs) {
    const found = pairMarks(pair, reference, answer.plan);
    if (pair.reference !== null) marks.reference[pair.reference] = found.leftStep;
    if (pair.candidate !== null) marks.candidate[pair.candidate] = found.rightStep;
    const left = pair.reference === null ? null : reference.steps[pair.reference];
    const right = pair.candidate === null ? null : answer.plan.steps[pair.candidate];
    if (!left && !right) continue; /* beyond what is embedded; counted below */
    const words = (step) => new Map((step?.args || []).map(([name, parts]) => [name, parts]));
    grid.append(
      element(
        "div",
        { class: "pair" },
        left
          ? stepCard(item, left, pair.reference, found.leftStep, found.left, pair, words(right))
          : absent("no such step in the reference"),
        right
          ? stepCard(item, right, pair.candidate, found.rightStep, found.right, pair, words(left))
          : absent("no such step in the answer"),
      ),
    );
  }
  if (!answer.pairs.length)
    grid.append(
      element(
        "div",
        { class: "pair" },
        absent("empty plan: no worker is called"),
        absent("empty plan: no worker is called"),
      ),
    );
  const cut = reference.cut + answer.plan.cut;
  if (cut)
    grid.append(
      element(
        "p",
        { class: "note cut" },
        `${count(cut)} further steps are not in this page; eval/items.jsonl has them.`,
      ),
    );
  return { grid, marks };
}

function absent(words) {
  return element("div", { class: "step absent" }, words);
}

function stepCard(item, step, index, mark, argMarks, pair, others) {
  const known = DATA.workers[DATA.catalogOf[item.part]];
  const unknown = known && !Object.hasOwn(known, step.worker);
  const head = element(
    "div",
    { class: "step-head" },
    element("span", { class: "index" }, String(index)),
    element("span", { class: "worker" }, shown(step.worker)),
    unknown ? element("span", { class: "pill fall" }, "not in the catalog") : null,
    sign(mark),
  );
  const rows = step.args.map(([name, parts]) => argumentRow(name, parts, argMarks[name], others.get(name)));
  if (step.after.length) {
    const differs = pair.after_differs ? "changed" : "same";
    rows.push(
      argumentRow(
        "after",
        [step.after.join(", ")],
        pair.reference === null || pair.candidate === null ? mark : differs,
        null,
      ),
    );
  }
  return element("div", { class: `step ${mark}` }, head, rows.length ? element("dl", { class: "args" }, rows) : null);
}

function sign(mark) {
  if (!MARK_SIGNS[mark]) return null;
  return element(
    "span",
    { class: `sign ${mark}` },
    element("span", { "aria-hidden": "true" }, MARK_SIGNS[mark]),
    element("span", { class: "sr" }, MARK_WORDS[mark]),
  );
}

function argumentRow(name, parts, mark, other) {
  return element(
    "div",
    { class: `arg ${mark}` },
    element("dt", {}, shown(name)),
    element("dd", {}, mark === "changed" ? changedValue(parts, other) : plainValue(parts), sign(mark)),
  );
}

function plainValue(parts) {
  return parts.map((part) => (typeof part === "string" ? shown(part) : pointer(part[0])));
}

function pointer(path) {
  return element("span", { class: "pointer" }, element("span", { "aria-hidden": "true" }, "← "), shown(path));
}

/* A value that differs, with its differing middle marked where both sides are plain text. */
function changedValue(parts, other) {
  const plain = (value) => value && value.length === 1 && typeof value[0] === "string";
  if (!plain(parts) || !plain(other)) return element("mark", {}, plainValue(parts));
  const [ours, theirs] = [Array.from(parts[0]), Array.from(other[0])];
  let start = 0;
  while (start < Math.min(ours.length, theirs.length) && ours[start] === theirs[start]) start += 1;
  let end = 0;
  while (end < Math.min(ours.length, theirs.length) - start && ours.at(-1 - end) === theirs.at(-1 - end)) end += 1;
  const text = (from, to) => shown(ours.slice(from, to).join(""));
  if (start + end >= ours.length || start + end < ours.length / 3) return element("mark", {}, plainValue(parts));
  return [text(0, start), element("mark", {}, text(start, ours.length - end)), text(ours.length - end, ours.length)];
}

function graphs(item, answer, marks) {
  const draw = (plan, found, title) =>
    element(
      "div",
      {},
      element("h4", {}, title),
      plan && plan.steps.length
        ? element(
            "div",
            { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title} as a graph` },
            planGraph(plan, found, title),
          )
        : element("p", { class: "note" }, plan ? "Empty plan." : "No plan to draw."),
    );
  return element(
    "section",
    { class: "graphs" },
    element("h3", {}, "As graphs"),
    element("p", { class: "note" }, "A line leads to the step that needs a result. Dashed: order only."),
    element(
      "div",
      { class: "two" },
      draw(answer.against === null ? null : item.references[answer.against], marks.reference, "Reference"),
      draw(answer.plan, marks.candidate, "Answer"),
    ),
    wrongEdges(answer.plan),
  );
}

function wrongEdges(plan) {
  const wrong = plan ? plan.edges.filter((edge) => edge.source >= edge.target || edge.source < 0) : [];
  if (!wrong.length) return null;
  const words = wrong.slice(0, 8).map((edge) => `step ${edge.target} needs step ${edge.source}`);
  return element(
    "p",
    { class: "trouble" },
    `Not drawn, because a step can only need an earlier one: ${words.join("; ")}.`,
  );
}

function rawText(item, answer) {
  const blocks = [];
  if (answer.text !== null) {
    blocks.push(element("h4", {}, "Answer"), textBlock(answer.text, answer.length));
  }
  item.reference_text.forEach((text, place) => {
    blocks.push(
      element("h4", {}, item.reference_text.length > 1 ? `Reference ${place + 1}` : "Reference"),
      textBlock(text, text.length),
    );
  });
  return element("details", { class: "more" }, element("summary", {}, "As text"), blocks);
}

function textBlock(text, length) {
  const left = length - text.length;
  return element(
    "pre",
    { tabindex: "0", dir: "auto" },
    shown(text),
    left > 0 ? element("span", { class: "note" }, ` … ${count(left)} more characters in eval/items.jsonl`) : null,
  );
}

/* Signatures of the workers that the reference or the answer calls, where the page knows the catalog. */
function signatures(item, answer) {
  const known = DATA.workers[DATA.catalogOf[item.part]];
  if (!known) return null;
  const plans = [...item.references, ...(answer.plan ? [answer.plan] : [])];
  const names = new Set(
    plans.flatMap((plan) => plan.steps.map((step) => step.worker)).filter((name) => Object.hasOwn(known, name)),
  );
  if (!names.size) return null;
  return element(
    "details",
    { class: "more" },
    element("summary", {}, "Signatures of these workers"),
    element(
      "ul",
      { class: "signatures" },
      [...names].map((name) => element("li", {}, element("code", {}, shown(known[name])))),
    ),
  );
}

function outcomes(answer) {
  const names = Object.keys(answer.outcomes);
  if (!names.length) return null;
  const value = (name) => {
    const found = answer.outcomes[name];
    return typeof found === "boolean" ? (found ? "yes" : "no") : `${(100 * found).toFixed(1)} %`;
  };
  return element(
    "details",
    { class: "more" },
    element("summary", {}, "Metrics of this answer"),
    element(
      "dl",
      { class: "outcomes" },
      names.map((name) =>
        element("div", {}, element("dt", {}, name.replaceAll("_", " ")), element("dd", {}, value(name))),
      ),
    ),
  );
}

function invented(answer) {
  if (!answer.invented.length) return null;
  return element(
    "div",
    { class: "invented" },
    element("h4", {}, "Not in the query"),
    element(
      "ul",
      {},
      answer.invented.map((text) => element("li", {}, element("code", {}, shown(text)))),
    ),
  );
}

function facts(item, answer) {
  const tokens = `${count(answer.prompt_tokens)} + ${count(answer.completion_tokens)}`;
  const finish = { stop: "ended by itself", length: "cut by the token limit", error: "request failed" };
  const entries = [
    ["First fault", faultPill(answer.fault)],
    ["Part", shown(item.part)],
    ["Tokens in + out", tokens],
    ["Seconds", short(answer.seconds)],
    ["Finish", finish[answer.finish] || "no answer"],
    ["Id", element("code", {}, shown(item.id))],
  ];
  return element(
    "dl",
    { class: "facts small" },
    entries.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );
}

function answerView(item, answer) {
  const view = element("div", { class: "answer-body" }, facts(item, answer));
  if (answer.finding) view.append(element("p", { class: "finding" }, shown(answer.finding)));
  let marks = { reference: [], candidate: [] };
  if (answer.plan && answer.against !== null) {
    const found = sideBySide(item, answer);
    marks = found.marks;
    view.append(found.grid);
  } else {
    view.append(oneSided(item, answer));
  }
  view.append(graphs(item, answer, marks));
  for (const block of [invented(answer), rawText(item, answer), signatures(item, answer), outcomes(answer)])
    if (block) view.append(block);
  return view;
}

/* Where there is no plan to compare: the reference's steps beside the reason, or the answer's steps alone. */
function oneSided(item, answer) {
  const grid = element(
    "div",
    { class: "sides" },
    element("h3", { class: "side-title" }, "Reference"),
    element("h3", { class: "side-title" }, "Answer"),
  );
  const cards = (plan) =>
    plan.steps.map((step, index) =>
      stepCard(
        item,
        step,
        index,
        "same",
        Object.fromEntries(step.args.map(([name]) => [name, "same"])),
        { reference: 0, candidate: 0 },
        new Map(),
      ),
    );
  const reference = answer.against === null ? null : item.references[answer.against];
  const left = reference ? cards(reference) : [absent("no reference")];
  const words = answer.text === null ? absent("no answer") : textBlock(answer.text, answer.length);
  const right = answer.plan ? cards(answer.plan) : [words];
  grid.append(
    element(
      "div",
      { class: "pair" },
      element("div", { class: "stack" }, left.length ? left : absent("empty plan: no worker is called")),
      element("div", { class: "stack" }, right),
    ),
  );
  return grid;
}
