/* Plots: Vega draws the specifications that Python made, in the colours and the width of the page.
   Vega's interpreter evaluates its expressions, so the page needs no permission to run text as code. */

function colours() {
  const probe = element("span", { class: "probe" });
  document.body.append(probe);
  const read = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const found = {
    text: read("--text"),
    muted: read("--muted"),
    line: read("--line"),
    systems: Array.from({ length: 10 }, (_, place) => read(`--system-${place}`)),
    faults: DATA.faults.map((_, place) => read(`--fault-${place}`)),
  };
  probe.remove();
  return found;
}

function plotConfig(width) {
  const found = colours();
  const font = getComputedStyle(document.body).fontFamily;
  const narrow = width < 440;
  return {
    background: null,
    font,
    view: { stroke: null },
    padding: { left: 0, right: 4, top: 4, bottom: 6 },
    range: { category: found.systems, ordinal: found.faults },
    axis: {
      labelColor: found.muted,
      titleColor: found.muted,
      gridColor: found.line,
      domainColor: found.line,
      tickColor: found.line,
      labelFontSize: 12,
      titleFontSize: 12,
      titleFontWeight: "normal",
      titlePadding: 8,
      labelLimit: narrow ? 96 : 180,
      labelPadding: 6,
    },
    axisY: { labelColor: found.text },
    legend: {
      orient: "top",
      direction: "horizontal",
      columns: Math.max(1, Math.floor(width / 130)),
      labelColor: found.text,
      labelFontSize: 12,
      labelLimit: 150,
      symbolSize: 90,
      rowPadding: 4,
      columnPadding: 14,
      offset: 10,
    },
    text: { color: found.text, fontSize: 12, font },
  };
}

/* Vega's tooltip, as text in one element of the page. */
function plotTooltip(_, event, item, value) {
  let box = document.getElementById("tooltip");
  if (!box) {
    box = element("div", { id: "tooltip", role: "status" });
    document.body.append(box);
  }
  box.replaceChildren();
  if (value === null || value === undefined) {
    box.removeAttribute("class");
    return;
  }
  for (const [name, text] of Object.entries(value)) {
    box.append(element("span", { class: "name" }, shown(name)), element("span", {}, shown(String(text))));
  }
  box.className = "open";
  const room = document.documentElement.clientWidth - box.offsetWidth - 8;
  box.style.left = `${Math.max(8, Math.min(event.clientX + 14, room))}px`;
  box.style.top = `${event.clientY + 18}px`;
}

function startPlots() {
  const figures = Array.from(document.querySelectorAll("figure.plot"));
  const draw = async (figure) => {
    const plot = DATA.plots[Number(figure.dataset.plot)];
    const select = figure.querySelector("select");
    const chart = figure.querySelector(".chart");
    figure.view?.finalize();
    const spec = structuredClone(plot.choices[Number(select.value)].spec);
    const result = await vegaEmbed(chart, spec, {
      mode: "vega-lite",
      actions: false,
      logLevel: 1 /* errors only */,
      ast: true,
      renderer: "svg",
      defaultStyle: false,
      config: plotConfig(chart.clientWidth),
      tooltip: plotTooltip,
    });
    figure.view = result;
    figure.width = chart.clientWidth;
  };
  const queue = new Map();
  const drawSoon = (figure) => {
    /* one drawing at a time for each figure; a later wish replaces a waiting one */
    queue.set(
      figure,
      (queue.get(figure) || Promise.resolve()).then(() => draw(figure)),
    );
  };
  for (const figure of figures) {
    const select = figure.querySelector("select");
    if (select.options.length < 2) select.closest("label").hidden = true;
    select.addEventListener("change", () => drawSoon(figure));
    new ResizeObserver(() => {
      if (figure.width !== undefined && figure.width !== figure.querySelector(".chart").clientWidth) drawSoon(figure);
    }).observe(figure);
    drawSoon(figure);
  }
  themeListeners.push(() => figures.forEach(drawSoon));
}

startPlots();
