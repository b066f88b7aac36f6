"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const view = $("view"), rows = $("rows"), heads = [...document.querySelectorAll(".heads [data-key]")];
  const keys = {
    example: (i) => data.ids[data.example[i]],
    class: (i) => data.classes[data.column[i]],
    given: (i) => data.given[i],
    wrong: (i) => data.wrong[i],
    drawn: (i) => i,
  };
  const drawn = data.probability;  // of cells proposed for decision: shown in their order, without what the audit thinks
  const name = new Intl.Collator(undefined, { numeric: true });
  const verdicts = new Map(), store = `mlt_jax ${data.report}`;
  let unsaved = false, order = data.wrong.map((_, i) => i), sort = { key: drawn ? "drawn" : "wrong", down: !drawn }, painted = "";

  const make = (tag, kind, text) => {
    const node = document.createElement(tag);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const build = (i, place) => {
    const given = data.given[i], example = data.example[i], verdict = verdicts.get(i);
    const row = make("div", `issue ${given ? "false" : "missed"} ${verdict || ""}`);
    row.setAttribute("role", "row");
    row.setAttribute("aria-rowindex", place + 1);
    row.dataset.issue = i;
    row.style.transform = `translateY(${place * height()}px)`;
    const picture = make("div", "pic"), source = data.thumbs[example];
    if (source) {
      const button = make("button", "thumb"), image = make("img", "thumb");
      image.src = source;
      image.alt = "";
      button.setAttribute("aria-label", `enlarge ${data.ids[example]}`);
      button.append(image);
      button.onclick = () => enlarge(i);
      picture.append(button);
    } else picture.append(make("div", "thumb none"));
    const who = make("div", "who", data.ids[example]);
    who.title = data.ids[example];
    const what = make("div", "what", data.classes[data.column[i]]);
    what.title = what.textContent;
    const turn = make("div", "turn", drawn ? (given ? "given" : "not given") : given ? "given, looks absent" : "missing, looks present");
    const meter = make("div", "meter"), track = make("i"), fill = make("u");
    fill.style.width = `${100 * data.wrong[i]}%`;
    track.append(fill);
    if (!drawn) meter.append(track, make("span", "", data.wrong[i] >= 0.9995 ? "> 0.999" : data.wrong[i].toFixed(3)));
    const choice = make("div", "verdict");
    for (const [word, letter, title] of [["flip", "f", "the label is wrong"], ["keep", "k", "the label is right"]]) {
      const button = make("button", letter, word);
      button.title = title;
      button.setAttribute("aria-pressed", String(verdict === word));
      button.onclick = () => decide(i, word);
      choice.append(button);
    }
    row.append(picture, who, what, turn, meter, choice);
    return row;
  };

  const height = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));

  const paint = (force) => {
    const h = height();
    const first = Math.max(0, Math.floor(view.scrollTop / h) - 6);
    const last = Math.min(order.length, Math.ceil((view.scrollTop + view.clientHeight) / h) + 6);
    const now = `${first}:${last}:${h}`;
    if (!force && now === painted) return;
    painted = now;
    rows.style.height = `${order.length * h}px`;
    rows.replaceChildren(...order.slice(first, last).map((i, k) => build(i, first + k)));
  };

  const refresh = () => {
    const text = $("search").value.trim().toLowerCase(), column = $("class").value, kind = $("kind").value;
    const pass = (i) => (column === "" || data.column[i] === Number(column)) && (kind === "" || data.given[i] === Number(kind))
      && (!text || keys.example(i).toLowerCase().includes(text) || keys.class(i).toLowerCase().includes(text));
    const key = keys[sort.key], sign = sort.down ? -1 : 1;
    order = data.wrong.map((_, i) => i).filter(pass).sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return sign * (typeof x === "string" ? name.compare(x, y) : x - y) || a - b;
    });
    for (const head of heads)
      head.setAttribute("aria-sort", head.dataset.key === sort.key ? (sort.down ? "descending" : "ascending") : "none");
    $("shown").textContent = `${order.length.toLocaleString()} of ${data.wrong.length.toLocaleString()} ${drawn ? "cells" : "suspects"}`;
    view.setAttribute("aria-rowcount", order.length);
    view.scrollTop = 0;
    paint(true);
  };

  const decide = (i, word) => {
    if (verdicts.get(i) === word) verdicts.delete(i);
    else verdicts.set(i, word);
    unsaved = true;
    keep();
    count();
    paint(true);
  };

  const count = () => {
    $("save").disabled = !verdicts.size;
    $("save").textContent = verdicts.size ? `Save ${verdicts.size} decisions` : "Save decisions";
  };

  // Decisions outlive a reload: the browser keeps them under the report's own name, by example and class.
  const place = (i) => JSON.stringify([keys.example(i), keys.class(i)]);
  const keep = () => {
    try { localStorage.setItem(store, JSON.stringify([...verdicts].map(([i, word]) => [place(i), word]))); } catch { /* full or forbidden */ }
  };
  const restore = () => {
    let kept = null;
    try { kept = JSON.parse(localStorage.getItem(store)); } catch { /* forbidden, or not ours */ }
    if (!Array.isArray(kept)) return;
    const row = new Map(data.wrong.map((_, i) => [place(i), i]));
    for (const [where, word] of kept) if (row.has(where)) verdicts.set(row.get(where), word);
    count();
  };
  addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });

  const enlarge = (i) => {
    $("large").src = data.thumbs[data.example[i]];
    $("about").textContent = `${keys.example(i)}: ${keys.class(i)} is ${data.given[i] ? "given" : "not given"}${drawn ? "" : `, wrong with probability ${data.wrong[i].toFixed(3)}`}`;
    $("zoom").showModal();
  };

  // A spreadsheet would take such text for a formula; `mlt` takes the ' off again.
  const guarded = (value) => (typeof value === "string" && /^'*[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value);
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  const cell = (value) => quoted(guarded(value));
  const line = (i) => [keys.example(i), keys.class(i), data.given[i], 1 - data.given[i], data.wrong[i], verdicts.get(i) || "", ...(drawn ? [drawn[i]] : [])];
  // All proposed cells are saved: those not decided tell how far the random order was followed.
  const decisions = () => [`example,class,given,suggested,p_wrong,decision${drawn ? ",probability" : ""}`,
    ...(drawn ? data.wrong.map((_, i) => i) : [...verdicts.keys()]).map((i) => line(i).map(cell).join(","))].join("\n") + "\n";
  $("save").onclick = () => {
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([decisions()], { type: "text/csv" }));
    link.download = "decisions.csv";
    link.click();
    unsaved = false;
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  for (const head of heads) head.firstElementChild.onclick = () => {
    sort = { key: head.dataset.key, down: head.dataset.key === sort.key ? !sort.down : head.dataset.key === "wrong" };
    refresh();
  };
  for (const id of ["search", "class", "kind"]) $(id).oninput = refresh;
  for (const button of document.querySelectorAll(".class [data-column]")) button.onclick = () => {
    $("class").value = button.dataset.column;
    refresh();
    $("issues").scrollIntoView();
  };
  view.onscroll = () => paint(false);
  addEventListener("resize", () => paint(true));
  $("zoom").onclick = () => $("zoom").close();
  restore();
  refresh();
})();
