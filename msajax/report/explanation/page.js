"use strict";
// Text of a corpus enters this page as text alone: by textContent and setAttribute, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const colours = data.modalities.map((_, k) => `var(--s${(k % 6) + 1})`);
let shown = 0;

function make(name, attributes = {}, ...children) {
  const isSvg = ["svg", "rect", "line", "text", "g", "title"].includes(name);
  const node = isSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else if (value !== null && value !== false) node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null) node.append(child);
  return node;
}

function canvas(width, height, attributes) {
  const viewBox = `0 0 ${width} ${height}`;
  return make("svg", { viewBox, width, height, ...attributes });
}

// Drawings have the width of their card, so that their letters are as large on a phone.
const room = () => byId("bridge").clientWidth;

const number = (x, digits = 3) => {
  if (x === null || x === undefined) return "unknown";
  const sign = x < 0 ? "−" : "";
  const size = Math.abs(x);
  return sign + (size > 0 && size < 10 ** -digits ? size.toExponential(1) : size.toFixed(digits));
};
const signed = (x) => (x > 0 ? "+" : "") + number(x);
const fill = (node, ...children) => node.replaceChildren(...children.flat());

function shade(x, largest) {
  // The square root lets small contributions be seen beside a large one.
  const share = largest > 0 ? Math.sqrt(Math.min(Math.abs(x) / largest, 1)) : 0;
  const side = x < 0 ? "--down" : "--up";
  return `background: rgba(var(${side}), calc(var(--full) * ${share.toFixed(3)}))`;
}

function nameOf(sample, modality, k) {
  const word = modality === "text" && sample.words ? sample.words[k] : "";
  return word ? `“${word}”` : `${modality} step ${k + 1}`;
}

// --- a sample ---

function show(k) {
  shown = Math.max(0, Math.min(k, data.samples.length - 1));
  const sample = data.samples[shown];
  byId("picker").value = String(shown);
  byId("place").textContent = `${shown + 1} of ${data.samples.length}`;
  byId("previous").disabled = shown === 0;
  byId("next").disabled = shown === data.samples.length - 1;
  byId("why").textContent = sample.why;
  byId("id").textContent = sample.id;
  const tiles = [[data.task === "classification" ? `probability of ${sample.output}`
    : data.outputs.length > 1 ? `score of ${sample.output}` : "score", number(sample.score)]];
  if (sample.predicted) tiles.push(["predicted", sample.predicted]);
  const label = typeof sample.label === "number" ? number(sample.label) : sample.label;
  if (label !== null) tiles.push(["label", label]);
  tiles.push(["score at the baseline", number(sample.baseline)]);
  tiles.push(["completeness error", number(sample.completeness_error, 4)]);
  fill(byId("tiles"), tiles.map(([name, value]) =>
    make("div", {}, make("b", {}, value), make("span", {}, name))));
  byId("transcript").textContent = sample.text || "";
  byId("transcript").hidden = !sample.text;
  byId("readout").textContent = "Point at a step, or move to it with Tab, for its number.";
  showBridge(sample);
  showSteps(sample);
  showTable(sample);
  showWeights(sample);
  showAttention(sample);
}

function showBridge(sample) {
  const rows = data.modalities.map((m) =>
    [m, sample.contributions[m].reduce((sum, x) => sum + x, 0)]);
  const width = room(), row = 26, left = Math.min(120, width * 0.22), right = 60;
  let at = sample.baseline;
  const ends = [at, ...rows.map(([, x]) => (at += x)), sample.score];
  const low = Math.min(...ends), high = Math.max(...ends), span = high - low || 1;
  const place = (x) => left + ((x - low) / span) * (width - left - right);
  const svg = canvas(width, (rows.length + 2) * row, { role: "img" });
  const told = rows.map(([m, x]) => `${m} ${signed(x)}`).join(", ");
  svg.setAttribute("aria-label",
    `baseline ${number(sample.baseline)}, ${told}, score ${number(sample.score)}`);
  const line = (name, value, from, to, kind, k) => {
    const y = k * row, a = Math.min(place(from), place(to)), b = Math.max(place(from), place(to));
    svg.append(
      make("text", { x: left - 10, y: y + 17, "text-anchor": "end" }, name),
      make("rect", { x: a - (kind ? 0 : 1.5), y: y + 5, width: Math.max(b - a, kind ? 1 : 3),
        height: row - 10, rx: 2, class: kind, fill: kind ? null : "currentColor" }),
      make("line", { x1: place(to), x2: place(to), y1: y + 5, y2: y + row + 5, class: "axis" }),
      make("text", { x: b + 8, y: y + 17, class: "value" }, value));
  };
  line("baseline", number(sample.baseline), sample.baseline, sample.baseline, "", 0);
  at = sample.baseline;
  rows.forEach(([m, x], k) => {
    line(m, signed(x), at, at + x, x < 0 ? "down" : "up", k + 1);
    at += x;
  });
  line("score", number(sample.score), sample.score, sample.score, "", rows.length + 1);
  svg.lastChild.previousSibling.remove();
  fill(byId("bridge"), svg);
}

function tell(sample, modality, k) {
  const x = sample.contributions[modality][k];
  byId("readout").textContent = `${nameOf(sample, modality, k)}: ${signed(x)}`;
}

function showSteps(sample) {
  const all = data.modalities.flatMap((m) => sample.contributions[m].map(Math.abs));
  const largest = Math.max(0, ...all);
  byId("scale").textContent = `deepest colour: ±${number(largest)}`;
  const inWords = sample.words !== null && sample.words.some((word) => word);
  const beside = inWords ? data.with_words : [];
  fill(byId("text"), inWords ? [words(sample, beside, largest)] : []);
  const strips = data.modalities.filter((m) => !(inWords && (m === "text" || beside.includes(m))));
  fill(byId("strips"), strips.map((m) => strip(sample, m, largest)));
}

function words(sample, beside, largest) {
  // Pieces of one word stand together; below a word are the steps that are of the same moment.
  const cells = [];
  sample.words.forEach((word, k) => {
    if (!word && !beside.some((m) => sample.contributions[m][k])) return;
    const of = sample.word_of_piece ? sample.word_of_piece[k] : k;
    const last = cells[cells.length - 1];
    const goesOn = word.startsWith("##") || (sample.word_of_piece && last && last.of === of);
    if (last && of >= 0 && goesOn && (!beside.length || sample.word_of_piece)) last.steps.push(k);
    else cells.push({ of, steps: [k] });
  });
  const list = make("ol", { class: "words", "aria-label": "words with their contributions" });
  for (const { of, steps } of cells) {
    const pieces = steps.map((k) => {
      const x = sample.contributions.text[k] ?? 0, word = sample.words[k];
      const about = () => tell(sample, "text", k);
      const special = /^(\[[A-Z]+\]|<\/?[a-z]+>)$/.test(word);
      return make("span", { class: special ? "step special" : "step", tabindex: 0,
        title: signed(x), style: word ? shade(x, largest) : "",
        onmouseenter: about, onfocus: about,
        "aria-label": `${word || "no word"} ${signed(x)}` },
        special ? word : word.replace(/^##(?=.)/, "") || "·");
    });
    const bars = beside.map((m) => underWord(sample, m, of, largest));
    list.append(make("li", {}, make("span", { class: "pieces" }, pieces), bars));
  }
  if (!beside.length) return list;
  const names = beside.map((m, k) => `${k ? `then ${m}` : m}`).join(", ");
  return make("div", {}, list, make("p", { class: "legend" },
    make("span", {}, `Bars below a word: ${names}, at the step of that word.`)));
}

function underWord(sample, m, step, largest) {
  const x = step >= 0 ? sample.contributions[m][step] : undefined;
  const about = () => {
    byId("readout").textContent = `${m} at this word: ${x === undefined ? "no step" : signed(x)}`;
  };
  const share = x && largest ? Math.sqrt(Math.abs(x) / largest) : 0;
  const bar = make("span", { style: `position: absolute; left: 15%; right: 15%; border-radius: 2px;
    height: ${Math.max(share * 92, x ? 8 : 0).toFixed(0)}%; bottom: 0;
    background: rgb(var(${x < 0 ? "--down" : "--up"}))` });
  return make("span", { class: "under", title: x === undefined ? "" : `${m} ${signed(x)}`,
    onmouseenter: about }, bar);
}

function strip(sample, m, largest) {
  const values = sample.contributions[m];
  const total = values.reduce((sum, x) => sum + x, 0);
  const title = make("h4", {}, m + " ",
    make("span", {}, values.length ? `${values.length} step${values.length > 1 ? "s" : ""}, ` +
      `together ${signed(total)}` : "absent in this sample"));
  if (!values.length) return make("div", { class: "strip" }, title);
  // All strips have steps of the same width, so that lengths can be compared.
  const longest = Math.max(...data.modalities.map((other) => sample.contributions[other].length));
  const width = room(), height = 60, middle = height / 2, step = Math.min(width / longest, 40);
  const svg = canvas(width, height, { role: "group",
    "aria-label": `contributions of the steps of ${m}` });
  svg.append(make("line", { x1: 0, x2: step * values.length, y1: middle, y2: middle,
    class: "axis" }));
  values.forEach((x, k) => {
    const size = largest ? (Math.abs(x) / largest) * (middle - 3) : 0;
    const gap = Math.min(step * 0.15, 2), about = () => tell(sample, m, k);
    svg.append(
      make("rect", { x: k * step + gap / 2, width: Math.max(step - gap, 0.5),
        y: x < 0 ? middle : middle - size, height: size, rx: Math.min(2, step / 6),
        class: x < 0 ? "down" : "up" }),
      make("rect", { x: k * step, y: 0, width: step, height, class: "hit", tabindex: 0,
        role: "img", "aria-label": `step ${k + 1}: ${signed(x)}`, onmouseenter: about,
        onfocus: about }, make("title", {}, `step ${k + 1}: ${signed(x)}`)));
  });
  return make("div", { class: "strip" }, title, svg);
}

function tableOf(head, rows, left = 1) {
  const cell = (kind) => (value, k) => make(kind, k < left ? { class: "left" } : {}, value);
  return make("table", {}, make("thead", {}, make("tr", {}, head.map(cell("th")))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map(cell("td"))))));
}

function showTable(sample) {
  const rows = data.modalities.flatMap((m) => sample.contributions[m].map((x, k) =>
    [m, String(k + 1), m === "text" && sample.words ? sample.words[k] : "", signed(x)]));
  fill(byId("table"), tableOf(["modality", "step", "word", "contribution"], rows, 3));
}

function showWeights(sample) {
  const parts = data.modalities.map((m, k) => [m, sample.weights[m], colours[k]]);
  const percent = (x) => `${(100 * x).toFixed(1)} %`;
  fill(byId("weights"),
    make("div", { class: "stack", "aria-hidden": "true" }, parts.map(([, x, colour]) =>
      make("i", { style: `flex: ${x} 0 0; background: ${colour}` }))),
    make("ul", { class: "names" }, parts.map(([m, x, colour]) =>
      make("li", {}, make("i", { style: `background: ${colour}` }), `${m} ${percent(x)}`))));
}

// --- the page ---

function begin() {
  const seeds = data.seeds === 1 ? "one random seed" : `means over ${data.seeds} random seeds`;
  byId("facts").textContent = `${data.samples.length} of the ${data.samples_in_split} samples of ` +
    `${data.split}; ${seeds}; ${data.modalities.join(", ")}.`;
  byId("completeness").textContent = data.completeness_in_words;
  byId("attention-note").textContent = data.attention_in_words;
  byId("attention-read").hidden = !data.samples.some((sample) => sample.attention.length);
  const picker = byId("picker");
  let group = null;
  data.samples.forEach((sample, k) => {
    if (!group || group.label !== sample.why) {
      group = make("optgroup", { label: sample.why });
      picker.append(group);
    }
    group.append(make("option", { value: k }, sample.id));
  });
  const sizes = data.summary.mean_absolute_contribution;
  fill(byId("summary"), tableOf(["modality", "mean absolute contribution"],
    data.modalities.map((m) => [m, number(sizes[m])])));
  picker.addEventListener("change", () => show(Number(picker.value)));
  byId("previous").addEventListener("click", () => show(shown - 1));
  byId("next").addEventListener("click", () => show(shown + 1));
  for (const kind of ["which", "layer", "head"]) {
    byId(kind).addEventListener("change", (event) => {
      chosen[kind] = event.target.value;
      showAttention(data.samples[shown]);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("select, input") || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const to = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0,
      End: data.samples.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
  let drawn = room();
  window.addEventListener("resize", () => {
    if (room() !== drawn) show(shown);
    drawn = room();
  });
  show(Number(new URLSearchParams(location.hash.slice(1)).get("sample") || 1) - 1);
}

document.addEventListener("DOMContentLoaded", begin);  // after the rest of the script
