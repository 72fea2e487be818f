// The maps of attention of a sample: one of them is shown, of a layer and a head.
const chosen = { which: null, layer: null, head: "mean" };

function nameOfMap(map) {
  if (map.part === "pooled") return "modalities to each other";
  const where = { pretrained: ", pretrained encoder", encoder: ", encoder", fusion: "",
    after_fusion: ", after fusion" }[map.part];
  return `${map.from} to ${map.from === map.to ? "itself" : map.to}${where}`;
}

function namesOfSteps(sample, map, side) {
  // What the cells along a side of a map are called: words where they are known, else numbers.
  const modality = map[side], size = map.steps_of_cells[side === "from" ? 0 : 1];
  if (map.part === "pooled") return (k) => data.modalities[k];
  let known = modality === "text" && sample.words ? sample.words : [];
  if (sample.word_of_piece && known.length && map.part !== "pretrained") {
    known = [];
    sample.words.forEach((word, k) => {
      const of = sample.word_of_piece[k];
      if (of >= 0) known[of] = (known[of] || "") + word.replace(/^##(?=.)/, "");
    });
  }
  if (size === 1) return (k) => known[k] || `${modality} ${k + 1}`;
  return (k) => `${modality} ${k * size + 1}–${(k + 1) * size}`;
}

const isNamed = (sample, map, side) => map.part === "pooled" ||
  (map[side] === "text" && sample.words !== null && map.steps_of_cells[side === "from" ? 0 : 1] === 1);

function choices(id, values, current) {
  fill(byId(id), values.map(([value, label]) =>
    make("option", { value, selected: value === current ? "" : null }, label)));
}

function showAttention(sample) {
  const maps = sample.attention;
  byId("attention-section").hidden = !maps.length;
  if (!maps.length) return;
  // A choice that this sample does not have is replaced for it alone.
  const names = [...new Set(maps.map(nameOfMap))];
  const first = maps.find((map) => map.part === "fusion") || maps[0];
  const which = names.includes(chosen.which) ? chosen.which : nameOfMap(first);
  const layers = maps.filter((map) => nameOfMap(map) === which);
  const map = layers.find((one) => String(one.layer) === chosen.layer) || layers[0];
  const heads = (map.heads || []).map((_, k) => [String(k), String(k + 1)]);
  const head = heads.some(([k]) => k === chosen.head) ? chosen.head : "mean";
  choices("which", names.map((name) => [name, name]), which);
  choices("layer", layers.map((one) => [String(one.layer), String(one.layer + 1)]),
    String(map.layer));
  choices("head", [["mean", "mean of all"], ...heads], head);
  showMap(sample, map, head === "mean" ? map.thousandths : map.heads[Number(head)]);
}

function showMap(sample, map, thousandths) {
  const rowName = namesOfSteps(sample, map, "from"), columnName = namesOfSteps(sample, map, "to");
  const rows = thousandths.length, columns = thousandths[0].length;
  const isWords = isNamed(sample, map, "to");
  const longest = Math.max(...Array.from({ length: columns }, (_, c) => columnName(c).length));
  const left = Math.min(112, room() * 0.28), top = isWords ? Math.min(10 + longest * 6.5, 88) : 22;
  const cell = Math.max(9, Math.min(26, Math.floor((room() - left - 4) / columns)));
  const width = left + columns * cell + (isWords ? 30 : 4), height = top + rows * cell + 2;
  const largest = Math.max(...thousandths.flat());
  const cut = (label, letters) =>
    label.length > letters ? `${label.slice(0, Math.max(letters - 1, 1))}…` : label;
  const svg = canvas(width, height, { role: "img",
    "aria-label": `attention of ${nameOfMap(map)}; the table below has its numbers` });
  const every = isWords ? Math.ceil(11 / cell) : Math.ceil(28 / cell);
  for (let c = 0; c < columns; c += every) {
    const x = left + (c + 0.5) * cell, y = top - 7;
    const turned = { transform: `rotate(-60 ${x + 3} ${y + 2})`, "text-anchor": "start" };
    svg.append(make("text", { x: isWords ? x + 3 : x, y: isWords ? y + 2 : y,
      ...(isWords ? turned : { "text-anchor": "middle" }) },
      isWords ? cut(columnName(c), 12) : String(c * map.steps_of_cells[1] + 1)));
  }
  thousandths.forEach((row, r) => {
    const label = rowName(r);
    if (cell >= 11 || r % 2 === 0) {
      svg.append(make("text", { x: left - 8, y: top + (r + 0.5) * cell + 4, "text-anchor": "end" },
        cut(label, Math.floor((left - 8) / 7))));
    }
    row.forEach((x, c) => {
      const said = `${label} → ${columnName(c)}: ${number(x / 1000)}`;
      svg.append(make("rect", { x: left + c * cell, y: top + r * cell, width: cell - 1,
        height: cell - 1, class: "cell", fill: "rgb(var(--up))",
        "fill-opacity": (0.06 + 0.94 * (largest ? x / largest : 0)).toFixed(3),
        onmouseenter: () => { byId("attention-readout").textContent = said; } },
        make("title", {}, said)));
    });
  });
  fill(byId("attention"), svg);
  const [from, to] = map.part === "pooled" ? ["modalities", "modalities"]
    : [`steps of ${map.from}`, `steps of ${map.to}`];
  byId("attention-readout").textContent = `Rows: ${from}, which attend; columns: ${to}. ` +
    `Darkest: ${number(largest / 1000)}; equal attention would be ${number(1 / columns)}.`;
  const table = thousandths.map((row, r) => {
    const most = Math.max(...row);
    return [rowName(r), most ? columnName(row.indexOf(most)) : "nothing", number(most / 1000)];
  });
  fill(byId("attention-table"), tableOf(["row", "looks most at", "weight"], table, 2));
}
