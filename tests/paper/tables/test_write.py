import csv

from mlt_jax.paper import printed as paper
from mlt_jax.paper.tables import results, write


def test_every_format_has_the_entries_their_notes_and_what_the_runs_are(partly_run, tmp_path):
    theirs = paper.tables()["cls_VOC2012_c"].value("OF1", "Reweight-Ours", "(0,0.6)").mean
    paths = write.write(partly_run, tmp_path, about=["made `up`"], formats=("md", "csv", "tex", "html"))
    texts = {path.suffix: path.read_text(encoding="utf-8") for path in paths}
    shown = f"60.50 ±9.50 ({theirs:.2f}, {60.5 - theirs:+.2f})"
    assert f"**{shown}**" in texts[".md"]
    assert f"<b>60.50 ±9.50</b><small>{theirs:.2f}, {60.5 - theirs:+.2f}</small>" in texts[".html"]
    assert texts[".html"].count("<section>") == 1 + 3 + 1  # about, three metrics, foot
    assert rf"\textbf{{60.50 $\pm$9.50 ({theirs:.2f}, {60.5 - theirs:+.2f})}}" in texts[".tex"]
    assert texts[".tex"].count(r"\resizebox{\textwidth}{!}{%") == 1
    assert all("AGCN; CSRA: not run, no images." in text for text in texts.values())
    assert "made <code>up</code>" in texts[".html"]
    assert all("made `up`" in text for kind, text in texts.items() if kind != ".html")
    lines = csv.DictReader(line for line in texts[".csv"].splitlines() if not line.startswith("#"))
    [line] = [x for x in lines if (x["metric"], x["method"], x["column"]) == ("OF1", "Reweight-Ours", "(0,0.6)")]
    assert float(line["ours"]) == 60.5
    assert float(line["paper"]) == theirs
    assert not list(tmp_path.glob("*.part"))


def test_tau_comes_with_its_figure(fake_records, tmp_path):
    made, records = fake_records("tau")
    paths = write.write(results.tabulate(made, records, seeds=(0, 1), missing={}), tmp_path, about=[], formats=("md",))
    [figure] = [path for path in paths if path.suffix == ".svg"]
    assert figure.read_text().count("<circle") == 2 * 3 * (8 + 1)
