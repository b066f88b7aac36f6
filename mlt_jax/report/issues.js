"use strict";
// The labels to decide, as a list or a gallery of which only what is on screen is in the document.
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const view = $("view"), rows = $("rows"), zoom = $("zoom"), large = $("large");
  const heads = [...document.querySelectorAll(".heads [data-key]")];
  const drawn = data.probability;  // of cells proposed for decision: shown in their order, without what the audit thinks
  const all = data.wrong.map((_, i) => i), store = `mlt_jax ${data.report} `;
  const number = (n) => n.toLocaleString("en"), several = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

  const id = (i) => data.ids[data.example[i]], name = (i) => data.classes[data.column[i]];
  const action = (i, word) => (word === "keep" ? "keep" : data.given[i] ? "remove label" : "add label");
  const chance = (i) => (data.wrong[i] >= 0.9995 ? "> 0.999" : data.wrong[i].toFixed(3));
  const link = (example) => data.files[example];

  // Names are compared once, not at every sort.
  const ranked = (names) => {
    const { compare } = new Intl.Collator(undefined, { numeric: true }), rank = new Int32Array(names.length);
    names.map((_, k) => k).sort((a, b) => compare(names[a], names[b])).forEach((k, r) => { rank[k] = r; });
    return rank;
  };
  let examples, classes;
  const keys = {
    example: (i) => (examples ??= ranked(data.ids))[data.example[i]],
    class: (i) => (classes ??= ranked(data.classes))[data.column[i]],
    given: (i) => data.given[i],
    wrong: (i) => data.wrong[i],
    drawn: (i) => i,
  };

  const votes = new Map();  // issue -> (reviewer -> "flip" or "keep"); two words: a disagreement
  const split = new Set(), undone = [], nodes = new Map(), place = new Int32Array(all.length);
  let sort = { key: drawn ? "drawn" : "wrong", down: !drawn }, sorted = all, order = [], current = -1;
  let height = 64, per = 1, width = 0, reviewer = "", unsaved = false, index;

  const make = (tag, kind, text) => {
    const node = document.createElement(tag);
    if (kind) node.className = kind;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const say = (text) => { $("said").textContent = text; };
  const verdict = (i) => (split.has(i) ? "split" : votes.has(i) ? votes.get(i).values().next().value : "");

  // ---- rows
  const given = (i) => {
    const columns = data.labels[data.example[i]], line = make("span");
    line.append(columns.length ? "given: " : "no label is given");
    columns.forEach((j, k) => {
      if (k) line.append(", ");
      line.append(j < 0 ? `${-j} more` : j === data.column[i] ? make("b", "", data.classes[j]) : data.classes[j]);
    });
    return line;
  };

  const build = (i) => {
    const example = data.example[i], row = make("div", "issue");
    const part = (kind, text) => {
      const cell = make("div", kind, text);
      cell.setAttribute("role", "gridcell");
      if (text) cell.title = text;
      row.append(cell);
      return cell;
    };
    row.setAttribute("role", "row");
    row.dataset.issue = i;
    const picture = part("pic"), source = data.thumbs[example] || link(example);
    if (source) {
      const button = make("button", "thumb"), image = make("img", "thumb");
      image.decoding = "async";
      image.alt = "";
      image.onerror = () => image.classList.add("none");
      image.src = source;
      button.setAttribute("aria-label", `enlarge ${id(i)}`);
      button.append(image);
      picture.append(button);
    } else picture.append(make("div", "thumb none"));
    part("who", id(i));
    const has = part("has");
    has.append(given(i));
    has.title = has.textContent;
    part("what", name(i));
    part("turn", drawn ? (data.given[i] ? "given" : "not given") : data.given[i] ? "given, looks absent" : "missing, looks present");
    const meter = part("meter"), track = make("i"), fill = make("u");
    fill.style.width = `${100 * data.wrong[i]}%`;
    track.append(fill);
    if (!drawn) meter.append(track, make("span", "", chance(i)));
    const choice = part("verdict");
    for (const [word, letter, title] of [["flip", "f", "the label is wrong (f)"], ["keep", "k", "the label is right as it is (k)"]]) {
      const button = make("button", letter, action(i, word));
      button.title = title;
      choice.append(button);
    }
    choice.append(make("small", "by"));
    update(i, row);
    return row;
  };

  const update = (i, row = nodes.get(i)) => {
    if (!row) return;
    const word = verdict(i), here = i === current, cast = votes.get(i);
    row.className = `issue ${data.given[i] ? "false" : "missed"} ${word}`;
    row.setAttribute("aria-selected", String(here));
    row.tabIndex = here ? 0 : -1;
    for (const button of row.querySelectorAll("button")) button.tabIndex = here ? 0 : -1;
    for (const [letter, kind] of [["f", "flip"], ["k", "keep"]]) row.querySelector(`.${letter}`).setAttribute("aria-pressed", String(word === kind));
    const by = word === "split" ? [...cast].map(([who, what]) => `${who || "you"}: ${action(i, what)}`).join("; ")
      : cast && !cast.has(reviewer) ? [...cast.keys()].join(", ") : "";
    Object.assign(row.querySelector(".by"), { textContent: by, title: by });
  };

  // ---- what is on screen
  const measure = () => {
    const gallery = view.classList.contains("gallery");
    height = parseFloat(getComputedStyle(view).getPropertyValue(gallery ? "--tile" : "--row"));
    per = gallery ? Math.max(1, Math.floor(view.clientWidth / 150)) : 1;
    width = gallery ? view.clientWidth / per : 0;
    rows.style.height = `${Math.ceil(order.length / per) * height}px`;
  };

  const paint = () => {
    const top = view.scrollTop, spare = width ? 2 : 6;
    const first = Math.max(0, Math.floor(top / height) - spare) * per;
    const last = Math.min(order.length, (Math.ceil((top + view.clientHeight) / height) + spare) * per);
    const wanted = order.slice(first, last), at = current < 0 ? -1 : place[current];
    // The row with the focus stays in the document wherever it is, or the focus would be lost.
    if (at >= 0 && at < first) wanted.unshift(current);
    if (at >= last) wanted.push(current);
    const shown = new Set(wanted);
    for (const [i, node] of nodes) if (!shown.has(i)) {
      node.remove();
      nodes.delete(i);
    }
    let next = rows.firstElementChild;
    for (const i of wanted) {
      if (!nodes.has(i)) nodes.set(i, build(i));
      const node = nodes.get(i), k = place[i];
      if (node === next) next = next.nextElementSibling;
      else rows.insertBefore(node, next);
      node.setAttribute("aria-rowindex", k + 1);
      node.style.transform = `translate(${(k % per) * width}px, ${Math.floor(k / per) * height}px)`;
      node.style.width = width ? `${width}px` : "";
    }
  };

  const select = (i) => {
    const before = current;
    current = i;
    update(before);
    update(i);
  };

  const go = (k) => {
    if (!order.length) return;
    k = Math.min(Math.max(k, 0), order.length - 1);
    select(order[k]);
    const top = Math.floor(k / per) * height;
    if (top < view.scrollTop) view.scrollTop = top;
    if (top + height > view.scrollTop + view.clientHeight) view.scrollTop = top + height - view.clientHeight;
    paint();
    if (zoom.open) look(current);
    else nodes.get(current).focus({ preventScroll: true });
  };

  const filtered = () => {
    const text = $("search").value.trim().toLowerCase(), column = $("class").value, kind = $("kind").value, state = $("state").value;
    const ids = text && data.ids.map((x) => x.toLowerCase().includes(text)), names = text && data.classes.map((x) => x.toLowerCase().includes(text));
    const states = { "": () => true, undecided: (i) => !votes.has(i), decided: (i) => votes.has(i) && !split.has(i), split: (i) => split.has(i) };
    return sorted.filter((i) => (column === "" || data.column[i] === Number(column)) && (kind === "" || data.given[i] === Number(kind))
      && states[state](i) && (!text || ids[data.example[i]] || names[data.column[i]]));
  };

  // `stay`: what was current, or what takes its place, remains so.
  const refresh = (stay) => {
    const at = current < 0 ? 0 : place[current], inside = rows.contains(document.activeElement);
    order = filtered();
    place.fill(-1);
    order.forEach((i, k) => { place[i] = k; });
    const listed = all.length < data.total ? `, ${number(all.length)} listed` : "";
    const most = order.length === all.length || !listed;
    $("shown").textContent = `${number(order.length)} of ${number(data.total)} ${drawn ? "cells" : "suspects"}${most ? "" : listed}`;
    $("grid").setAttribute("aria-rowcount", order.length);
    $("none").hidden = order.length > 0;
    if (!stay) view.scrollTop = 0;
    const next = stay && current >= 0 && place[current] >= 0 ? current : order[stay ? Math.min(at, order.length - 1) : 0] ?? -1;
    select(next);
    measure();
    paint();
    if (inside && stay && !rows.contains(document.activeElement) && next >= 0) go(place[next]);
  };

  const resort = () => {
    const key = keys[sort.key], sign = sort.down ? -1 : 1;
    sorted = all.slice().sort((a, b) => sign * (key(a) - key(b)) || a - b);
    for (const head of heads)
      head.setAttribute("aria-sort", head.dataset.key === sort.key ? (sort.down ? "descending" : "ascending") : "none");
    refresh();
  };

  // ---- decisions
  const change = (changes, remember = true) => {
    if (remember) undone.push(changes.map(([i]) => [i, votes.get(i)]));
    for (const [i, cast] of changes) {
      if (cast) votes.set(i, cast);
      else votes.delete(i);
      if (cast && new Set(cast.values()).size > 1) split.add(i);
      else split.delete(i);
      keep(i);
      update(i);
    }
    unsaved = true;
    count();
    if ($("state").value) refresh(true);
    if (zoom.open && current < 0) zoom.close();
    else if (zoom.open) look(current);
  };

  // One's own decision settles a disagreement; the same one again takes it back.
  const decide = (i, word) => {
    const cast = votes.get(i);
    change([[i, cast?.size === 1 && cast.get(reviewer) === word ? undefined : new Map([[reviewer, word]])]]);
  };

  const undo = () => {
    const last = undone.pop();
    if (!last) return;
    change(last, false);
    if (place[last[0][0]] >= 0) go(place[last[0][0]]);
  };

  const nextUndecided = () => {
    const from = current < 0 ? -1 : place[current];
    const ahead = order.findIndex((i, k) => k > from && (!votes.has(i) || split.has(i)));
    const found = ahead >= 0 ? ahead : order.findIndex((i) => !votes.has(i) || split.has(i));
    if (found >= 0) go(found);
    else say("All are decided.");
  };

  const count = () => {
    const decided = votes.size - split.size;
    $("save").disabled = !votes.size;
    $("save").textContent = votes.size ? `Save ${several(votes.size, "decision")}` : "Save decisions";
    $("undo").disabled = !undone.length;
    $("done").max = Math.max(all.length, 1);
    $("done").value = decided;
    $("progress").textContent = `${number(decided)} of ${number(all.length)} decided${split.size ? `, ${several(split.size, "disagreement")}` : ""}`;
  };

  // Decisions outlive a reload: the browser keeps each under the report's own name, by example and class.
  const where = (i) => JSON.stringify([id(i), name(i)]);
  const cell = (text) => (index ??= new Map(all.map((i) => [where(i), i]))).get(text);
  const kept = (act) => {
    try { act(); } catch { say("This browser does not keep decisions: save them before you leave."); }
  };
  const keep = (i) => kept(() => {
    if (votes.has(i)) localStorage.setItem(store + where(i), JSON.stringify([...votes.get(i)]));
    else localStorage.removeItem(store + where(i));
  });
  const restore = () => kept(() => {
    reviewer = localStorage.getItem("mlt_jax reviewer") || "";
    $("reviewer").value = reviewer;
    for (const key of Object.keys(localStorage)) {
      const i = key.startsWith(store) ? cell(key.slice(store.length)) : undefined;
      if (i === undefined) continue;
      votes.set(i, new Map(JSON.parse(localStorage.getItem(key))));
      if (new Set(votes.get(i).values()).size > 1) split.add(i);
    }
  });
  addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });

  $("reviewer").onchange = () => {
    const before = reviewer;
    reviewer = $("reviewer").value.trim();
    kept(() => localStorage.setItem("mlt_jax reviewer", reviewer));
    if (!before) for (const [i, cast] of votes) if (cast.has("")) {  // what was decided before the name was given
      const word = cast.get("");
      cast.delete("");
      cast.set(reviewer, word);
      keep(i);
    }
    for (const i of nodes.keys()) update(i);
  };

  // ---- files
  // A spreadsheet would take such text for a formula; `mlt` takes the ' off again, and so does the import.
  const guarded = (value) => (typeof value === "string" && /^'*[=+\-@\t\r]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value);
  const unguarded = (value) => (/^''*[=+\-@\t\r]/.test(value) ? value.slice(1) : value);
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  const line = (i, who, word) => [id(i), name(i), data.given[i], 1 - data.given[i], data.wrong[i], word, ...(drawn ? [drawn[i]] : []), who];
  // All proposed cells are saved: those not decided tell how far the random order was followed.
  const decisions = () => {
    const lines = [["example", "class", "given", "suggested", "p_wrong", "decision", ...(drawn ? ["probability"] : []), "reviewer"]];
    for (const i of all) {
      for (const [who, word] of votes.get(i) || []) lines.push(line(i, who, word));
      if (drawn && !votes.has(i)) lines.push(line(i, "", ""));
    }
    return lines.map((cells) => cells.map((value) => quoted(guarded(value))).join(",") + "\n").join("");
  };
  $("save").onclick = () => {
    const made = make("a");
    made.href = URL.createObjectURL(new Blob([decisions()], { type: "text/csv" }));
    made.download = "decisions.csv";
    made.click();
    unsaved = false;
    setTimeout(() => URL.revokeObjectURL(made.href), 1000);
  };

  const parsed = (text) => {
    const mark = [";", "\t"].find((m) => !text.split("\n", 1)[0].includes(",") && text.includes(m)) || ",";
    const token = new RegExp(`("(?:[^"]|"")*"|[^"${mark}\\r\\n]*)(${mark}|\\r?\\n|$)`, "y"), table = [[]];
    while (token.lastIndex < text.length) {
      const found = token.exec(text);
      if (!found) throw new Error(`line ${table.length} is no CSV`);
      const inside = found[1].startsWith('"') ? found[1].slice(1, -1).replaceAll('""', '"') : found[1];
      table.at(-1).push(unguarded(inside).trim());
      if (found[2] === mark && token.lastIndex === text.length) table.at(-1).push("");
      if (found[2].endsWith("\n")) table.push([]);
    }
    return table;
  };

  const words = { flip: "flip", wrong: "flip", keep: "keep", right: "keep", "": "" };
  const take = (file, text) => {
    const [header, ...lines] = parsed(text.replace(/^\ufeff/, "")), at = (column) => header.indexOf(column);
    for (const column of ["example", "class", "given", "decision"]) if (at(column) < 0) throw new Error(`column "${column}" is missing`);
    const changed = new Map();
    let taken = 0, left = 0;
    lines.forEach((cells, k) => {
      if (cells.length < 2) return;
      const word = words[(cells[at("decision")] || "").toLowerCase()], i = cell(JSON.stringify([cells[at("example")], cells[at("class")]]));
      if (word === undefined) throw new Error(`line ${k + 2} decides "${cells[at("decision")]}"; write flip, keep or nothing`);
      if (!word) return;
      if (i === undefined || Number(cells[at("given")]) !== data.given[i]) { left += 1; return; }
      const cast = changed.get(i) || new Map(votes.get(i)), who = cells[at("reviewer")] || file;
      cast.set(cast.has(who) && cast.get(who) !== word ? `${who} (${file})` : who, word);
      changed.set(i, cast);
      taken += 1;
    });
    const before = split.size;
    if (changed.size) change([...changed]);
    const notes = [`${several(taken, "decision")} taken`];
    if (split.size > before) notes.push(several(split.size - before, "disagreement"));
    if (left) notes.push(`${number(left)} left: their labels are not on this page, or are given otherwise`);
    return notes.join("; ");
  };
  $("load").onclick = () => $("file").click();
  $("file").onchange = async () => {
    const said = [];
    for (const file of $("file").files) {
      try { said.push(`${file.name}: ${take(file.name, await file.text())}.`); } catch (error) { said.push(`${file.name}: ${error.message}. Nothing was taken.`); }
    }
    $("file").value = "";
    say(said.join(" "));
  };
  $("copy").onclick = async () => {
    getSelection().selectAllChildren($("command"));
    try { await navigator.clipboard.writeText($("command").textContent); say("Copied."); } catch { say("The command is marked: copy it."); }
  };

  // ---- the picture
  const look = (i) => {
    const example = data.example[i], thumb = data.thumbs[example], file = link(example), word = verdict(i);
    large.onerror = () => { if (thumb && large.src !== thumb) large.src = thumb; else large.hidden = true; };
    large.hidden = !(file || thumb);
    if (file || thumb) large.src = file || thumb;
    large.alt = id(i);
    const done = word === "split" ? ": disagreement" : word ? `: ${action(i, word)}` : "";
    $("about").textContent = `${id(i)}: ${name(i)} is ${data.given[i] ? "given" : "not given"}${drawn ? "" : `, P(wrong) ${chance(i)}`}${done}`;
    $("has").replaceChildren(given(i));
    $("original").hidden = !file;
    if (file) $("original").href = file;
    if (!zoom.open) zoom.showModal();
  };
  zoom.onclick = (event) => { if (!event.target.closest("a, p")) zoom.close(); };
  zoom.onclose = () => { if (current >= 0) nodes.get(current)?.focus({ preventScroll: true }); };

  // ---- clicks and keys
  rows.onclick = (event) => {
    const row = event.target.closest(".issue"), button = event.target.closest("button");
    if (!row) return;
    const i = Number(row.dataset.issue);
    select(i);
    if (!button) return;
    if (button.classList.contains("thumb")) look(i);
    else decide(i, button.className === "f" ? "flip" : "keep");
  };

  addEventListener("keydown", (event) => {
    const { target } = event, { top, bottom } = view.getBoundingClientRect();
    if (target.closest?.("input, select, textarea, summary")) return;
    const inside = zoom.open || rows.contains(target);
    const near = inside || $("issues").contains(target) || (target === document.body && top < innerHeight * 0.7 && bottom > innerHeight * 0.3);
    if (event.altKey || ((event.ctrlKey || event.metaKey) && event.key !== "z") || !near) return;
    const row = zoom.open ? 1 : per, page = Math.max(1, Math.floor(view.clientHeight / height)) * per;
    const steps = { ArrowDown: row, ArrowUp: -row, ArrowRight: 1, ArrowLeft: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const letters = { n: nextUndecided, u: undo };
    if (event.ctrlKey || event.metaKey) letters.z = undo;
    for (const [letter, word] of [["f", "flip"], ["k", "keep"]]) letters[letter] = () => {
      if (current < 0) return;
      decide(current, word);
      if (!inside && current >= 0) go(place[current]);
    };
    if (inside && event.key in steps) go(place[current] + steps[event.key]);
    else if (!event.shiftKey && event.key in letters) letters[event.key]();
    else if ((event.key === "Enter" || event.key === " ") && target.classList.contains("issue") && !zoom.open) look(current);
    else return;
    event.preventDefault();
  });

  for (const head of heads) head.firstElementChild.onclick = () => {
    sort = { key: head.dataset.key, down: head.dataset.key === sort.key ? !sort.down : head.dataset.key === "wrong" };
    resort();
  };
  for (const tool of ["search", "class", "kind", "state"]) $(tool).oninput = () => refresh();
  $("undo").onclick = undo;
  $("next").onclick = nextUndecided;
  const arrange = (gallery) => {
    view.classList.toggle("gallery", gallery);
    $("grid").classList.toggle("tiled", gallery);
    $("layout")?.setAttribute("aria-pressed", String(gallery));
    refresh();
  };
  if ($("layout")) $("layout").onclick = () => arrange(!view.classList.contains("gallery"));
  for (const button of document.querySelectorAll(".class [data-column]")) button.onclick = () => {
    $("class").value = button.dataset.column;
    if ("gallery" in button.dataset) arrange(true);
    else refresh();
    $("issues").scrollIntoView();
  };
  view.onscroll = paint;
  addEventListener("resize", () => { measure(); paint(); });
  restore();
  count();
  resort();
})();
